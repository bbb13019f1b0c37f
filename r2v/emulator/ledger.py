"""Billing ledger: an append-only file of JSON lines, synced to disk, that survives the emulator.

    {"event": "bill", "provider": ..., "mode": "batch", "batch": ..., "custom_id": ..., "run": ..., ...}
    {"event": "refund", "batch": ..., "custom_id": ...}    cancelled before it ran
    {"event": "void", "batch": ...}                        the emulator was killed before the batch was recorded
    {"event": "fault", "fault": ..., "occasion": ...}      a fault fired
    {"event": "leak", "path": ..., "key": true}            a call to the other host; key: true if it was sent a key

An accepted batch runs even if no client polls it again, so its requests are billed at acceptance. That makes the ledger
the oracle for exactly-once tests: `paid()` counts bills per (run, conversation, turn) of the custom_id
`{run}-{conversation}-{turn}-{try}`. A synchronous call has its custom_id in the header X-R2V-Custom-Id, in
metadata.custom_id (OpenAI) or in metadata.user_id (Anthropic).
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
    """Bill of one request. `tokens_in` includes cached tokens."""

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
    """Tokens written to the prompt cache."""
    written_1h: int = 0
    """Of these, tokens written to the one-hour cache."""

    @property
    def turn(self) -> PaidTurn | None:
        """Return the turn named by the custom_id, None without one."""
        return turn_of(self.custom_id)


def turn_of(custom_id: str | None) -> PaidTurn | None:
    """Return (run, conversation, turn) of a custom_id `{run}-{conversation}-{turn}-{try}`, else None.

    >>> turn_of("ab12cd34-pair-3-7-0")
    ('ab12cd34', 'pair-3', 7)
    """
    match = _ID.fullmatch(custom_id or "")
    return (match["run"], match["conversation"], int(match["turn"])) if match else None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Contents of a ledger."""

    bills: tuple[Bill, ...]
    fired: dict[str, list[int]]
    """Occasions of the faults that fired, by `Fault.identity`."""
    leaks: int
    """Number of calls that sent a key to the other host."""

    def paid(self) -> Counter[PaidTurn]:
        """Return the number of bills by (run, conversation, turn)."""
        return Counter(bill.turn for bill in self.bills if bill.turn is not None)


class Ledger:
    """A ledger file open for appending. Half a line left by a killed emulator is cut off first.

    Raises InputError for a file that is not a ledger or was altered; the file is left unchanged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _, self._witness, torn = _read(path)
        if not torn.startswith(_BEGINS[: len(torn)]):
            raise InputError(f"{path}: its last line is not of a billing ledger; name another file")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(self._file.tell() - len(torn))
            self._witness.write()
        self._lock = threading.Lock()

    def bill(self, bills: Iterable[Bill]) -> None:
        """Append bills; they are on disk when this returns."""
        self._append({"event": "bill"} | vars(bill) for bill in bills)

    def refund(self, batch: str, custom_ids: Iterable[str]) -> None:
        """Refund the requests that a cancelled batch did not run."""
        self._append({"event": "refund", "batch": batch, "custom_id": custom_id} for custom_id in custom_ids)

    def void(self, batch: str) -> None:
        """Void the bills of a batch that was never recorded."""
        self._append([{"event": "void", "batch": batch}])

    def fault(self, identity: str, occasion: int) -> None:
        """Record a fault that fired; not synced, since only the emulator's own count depends on it."""
        self._append([{"event": "fault", "fault": identity, "occasion": occasion}], sync=False)

    def leak(self, path: str, key: bool) -> None:
        """Record a call to the other host."""
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
    """Return the contents of a ledger file without an incomplete last line. Raises InputError for a file that is not a
    ledger or was altered."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Statement, Witness, bytes]:
    """Return a ledger's contents, its witness, which has seen all whole lines, and an incomplete last line. Raises as
    `read_ledger` does."""
    witness = Witness(path, _REMEDY)
    witness.require_file()
    bills: dict[str | None, list[Bill]] = {}
    refunds: set[tuple[str | None, str | None]] = set()
    fired: dict[str, list[int]] = {}
    leaks = 0
    torn = b""
    for number, line in enumerate(_lines(path), start=1):
        if not line.endswith(b"\n"):
            torn = line
            break
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
    valid = tuple(bill for batch in bills.values() for bill in batch if (bill.batch, bill.custom_id) not in refunds)
    return Statement(bills=valid, fired=fired, leaks=leaks), witness, torn


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file
