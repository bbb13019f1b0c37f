"""Records of a JSON-lines file from a stranger, packed or not: line by line, each exactly as R2V writes it.

A line that says something twice, or says it in another spelling, could mean one thing to one reader and another to the
next, so it is a finding even where it parses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

from r2v.data.schema import parse_json
from r2v.errors import InputError, R2VError
from r2v.evaluation.audit.findings import Findings
from r2v.storage.compression import lines_of

T = TypeVar("T")


def records_of(path: Path, parse: Callable[[str], T], findings: Findings) -> Iterator[T]:
    """The records of a file up to the first line that is none, which is a finding, as a missing file is."""
    name = "/".join(path.parts[-3:])
    lines = lines_of(path)
    for number in count(1):
        try:
            line = next(lines, None)
        except OSError as error:
            findings.add("unreadable file", f"{name}: {error.strerror}")
            return
        except InputError as error:
            findings.add("unreadable file", str(error).replace(str(path), name))
            return
        if line is None:
            return
        try:
            text = line.decode()
            record = parse(text)
            if _as_written(text) != text:
                findings.add("spelling", f"{name}:{number} is not the line that R2V writes for this record")
        except (ValueError, R2VError) as error:
            findings.add("malformed line", f"{name}:{number}: {error}")
            return
        yield record


def _as_written(line: str) -> str:
    return json.dumps(parse_json(line), ensure_ascii=False, separators=(",", ":")) + "\n"
