"""The billing ledger: a file of JSON lines, appended and synced, that outlives the emulator.

    {"event": "bill", "provider": ..., "mode": "batch", "batch": ..., "custom_id": ..., "run": ..., ...}
    {"event": "refund", "batch": ..., "custom_id": ...}    cancelled before it was run
    {"event": "void", "batch": ...}                        the emulator was killed before the batch was there
    {"event": "fault", "fault": ..., "occasion": ...}      a fault fired
    {"event": "leak", "path": ..., "key": true}            the other host was asked; key: and was sent a key

A batch that is accepted will run, whether or not anybody ever polls it again, so its requests are billed
when it is accepted. That makes the ledger the oracle of exactly-once: `paid()` counts per (run, conversation,
turn), read from the custom_id `{run}-{conversation}-{turn}-{try}`. A synchronous call says its custom_id in the
header X-R2V-Custom-Id, in metadata.custom_id (OpenAI) or in metadata.user_id (Anthropic).
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.storage.files import writing
from r2v.storage.witness import Witness

_REMEDY = "restore it, or name another file"
_BEGINS = b'{"event":"'
_ID = re.compile(r"(?P<run>[A-Za-z0-9_]+)-(?P<conversation>[A-Za-z0-9_-]+)-(?P<turn>[0-9]+)-(?P<attempt>[0-9]+)")

PaidTurn = tuple[str, str, int]
"""(run, conversation, turn)."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """One request that was paid for. `tokens_in` counts cached tokens too."""

    provider: str
    mode: str
    batch: str | None
    custom_id: str | None
    model: str
    body_sha256: str
    tokens_in: int
    tokens_out: int
    cached_in: int = 0
    written_in: int = 0
    """Tokens put into the prompt cache."""
    written_1h: int = 0
    """Of these, into the cache that lasts an hour."""

    @property
    def turn(self) -> PaidTurn | None:
        """What the request says it is for, where its custom_id says so."""
        return turn_of(self.custom_id)


def turn_of(custom_id: str | None) -> PaidTurn | None:
    """(run, conversation, turn) of a custom_id `{run}-{conversation}-{turn}-{try}`, else None.

    >>> turn_of("ab12cd34-pair-3-7-0")
    ('ab12cd34', 'pair-3', 7)
    """
    match = _ID.fullmatch(custom_id or "")
    return (match["run"], match["conversation"], int(match["turn"])) if match else None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a ledger says."""

    bills: tuple[Bill, ...]
    fired: dict[str, list[int]]
    """Occasions of each fault that fired, by `Fault.identity`."""
    leaks: int
    """Keys that the other host was sent."""

    def paid(self) -> Counter[PaidTurn]:
        """How often each (run, conversation, turn) was paid for."""
        return Counter(bill.turn for bill in self.bills if bill.turn is not None)


class Ledger:
    """The file, open for appending. Half a line left by a killed emulator is cut off first.

    Raises InputError for a file that is something else, or not what was written to it; it stays as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        read_ledger(path)
        self._witness = _seen(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
            self._file = path.open("ab")
            self._witness.write()
        self._lock = threading.Lock()

    def bill(self, bills: Iterable[Bill]) -> None:
        """Book these; they are on disk when this returns."""
        self._append({"event": "bill"} | vars(bill) for bill in bills)

    def refund(self, batch: str, custom_ids: Iterable[str]) -> None:
        """Book back what a cancelled batch did not run."""
        self._append({"event": "refund", "batch": batch, "custom_id": custom_id} for custom_id in custom_ids)

    def void(self, batch: str) -> None:
        """Book back a batch that was never there."""
        self._append([{"event": "void", "batch": batch}])

    def fault(self, identity: str, occasion: int) -> None:
        """Note a fault that fired (not synced: only the emulator's own count hangs on it)."""
        self._append([{"event": "fault", "fault": identity, "occasion": occasion}], sync=False)

    def leak(self, path: str, key: bool) -> None:
        """Note a call to the other host."""
        self._append([{"event": "leak", "path": path, "key": key}])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, events: Iterable[dict[str, Any]], sync: bool = True) -> None:
        with self._lock, writing(self.path):
            for event in events:
                line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
                self._witness.see(line)
                self._file.write(line)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
                self._witness.write()


def read_ledger(path: Path) -> Statement:
    """What a ledger file says now; a line that is still being written is not read. Raises InputError for a file that is
    something else, or not what was written to it."""
    witness = Witness(path, _REMEDY)
    witness.require_file()
    bills: dict[str | None, list[Bill]] = {}
    refunds: set[tuple[str | None, str | None]] = set()
    fired: dict[str, list[int]] = {}
    leaks = 0
    for number, line in _whole_lines(path):
        witness.see(line)
        try:
            event = json.loads(line)
            match event.pop("event"):
                case "bill":
                    bills.setdefault(event["batch"], []).append(Bill(**event))
                case "refund":
                    refunds.add((event["batch"], event["custom_id"]))
                case "void":
                    bills.pop(event["batch"], None)
                case "fault":
                    fired.setdefault(event["fault"], []).append(event["occasion"])
                case "leak":
                    leaks += bool(event["key"])
                case other:
                    raise ValueError(f"event {other!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"[:100]
            raise InputError(f"{path}:{number}: not a line of a billing ledger ({reason}); name another file") from None
    witness.require_all()
    kept = tuple(bill for batch in bills.values() for bill in batch if (bill.batch, bill.custom_id) not in refunds)
    return Statement(bills=kept, fired=fired, leaks=leaks)


def _seen(path: Path) -> Witness:
    """The witness of a ledger, all of whose lines it has seen."""
    witness = Witness(path, _REMEDY)
    for _, line in _whole_lines(path):
        witness.see(line)
    witness.require_all()
    return witness


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, line


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        end = file.tell()
        while end > 0:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        file.seek(end)
        torn = file.read(len(_BEGINS))
        if not _BEGINS.startswith(torn):
            raise InputError(f"{path}: its last line is not of a billing ledger; name another file")
        file.truncate(end)
