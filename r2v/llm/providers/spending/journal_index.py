"""Index of a journal: the positions of its answers, in the ledger's folder, so that a large journal is read once.

    outputs/.replies/<run>.index     a header of one JSON line, then 40 bytes per answer: key, offset, hash of its line

It is written by any process that has read a closed journal completely; all of them write the same bytes. It is a cache:
a damaged index, or one of another journal, is replaced, and each answer is read from the journal itself and compared
with the hash before it is used.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from r2v.storage.files import replacing

WORTH_AN_INDEX = 500
"""Least number of answers for which an index is written."""
_VERSION = 1
_ANSWER = struct.Struct("<16sQ16s")  # key, offset, hash; little-endian on every machine


def write_index(path: Path, header: Mapping[str, Any], answers: Mapping[str, tuple[int, bytes]]) -> None:
    """Write the index. Raise EnvironmentFault if the disk refuses."""
    body = b"".join(
        _ANSWER.pack(bytes.fromhex(key), offset, content.ljust(16, b"\0"))
        for key, (offset, content) in sorted(answers.items())
    )
    head = {"version": _VERSION, **header, "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as file:
        file.write(json.dumps(head).encode() + b"\n" + body)


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, bytes]]] | None:
    """Return the header and the answers; None without an index, or for a damaged one."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        if header["version"] != _VERSION or hashlib.sha256(body).hexdigest() != header["sha256"]:
            return None
        return header, dict(_answers(body))
    except (OSError, ValueError, LookupError, TypeError):  # the journal itself is read instead
        return None


def _answers(body: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for key, offset, content in _ANSWER.iter_unpack(body):
        yield key.hex(), (offset, content[:8])
