"""The index of a journal: what a view of it remembers, beside the ledger, so that a large one need not be read again.

    outputs/.replies/<run>.index     a header of one JSON line, then 40 bytes an answer: key, place, hash of its line

It is made by whoever has read a closed journal to its end, and any of them makes the same. It is a memory and no
record: one that is damaged, or is not of this journal, is made anew; and each answer is read from the journal itself,
and held against the hash, before it is used.
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
"""Answers from which an index is worth a file."""
_VERSION = 1
_ANSWER = struct.Struct("<16sQ16s")


def write_index(path: Path, header: Mapping[str, Any], answers: Mapping[str, tuple[int, bytes]]) -> None:
    """Write the index. Raises EnvironmentFault where the disk refuses."""
    body = b"".join(
        _ANSWER.pack(bytes.fromhex(key), offset, content.ljust(16, b"\0"))
        for key, (offset, content) in sorted(answers.items())
    )
    head = {"version": _VERSION, **header, "sha256": hashlib.sha256(body).hexdigest()}
    with replacing(path) as file:
        file.write(json.dumps(head).encode() + b"\n" + body)


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, bytes]]] | None:
    """The header and the answers; None where there is no index, or it is not what was written."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        if header["version"] != _VERSION or hashlib.sha256(body).hexdigest() != header["sha256"]:
            return None
        return header, dict(_answers(body))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _answers(body: bytes) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for key, offset, content in _ANSWER.iter_unpack(body):
        yield key.hex(), (offset, content[:8])
