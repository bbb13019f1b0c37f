"""Server state: a folder from which a restarted emulator resumes, the ledger, the faults, the clock.

    <folder>/files/<id>.{json,jsonl}      uploaded files
    <folder>/batches/<id>.{json,rows}     batches and the results of their requests
    <folder>/ledger.jsonl                 bills (elsewhere on request)

A batch exists once its .json does, which is written last, after the rows and the bills. When a folder is opened again,
bills of a batch without a .json are voided. The dataclasses below are the file format: renaming a field makes older
folders unreadable.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from r2v.emulator.answers import Answer, EmulatedRequest
from r2v.emulator.bodies import ApiError
from r2v.emulator.faults import Fault, Injector
from r2v.emulator.ledger import Ledger, read_ledger
from r2v.emulator.limits import EmulatedLimits, Lifecycle, Timing
from r2v.emulator.models import refusal_of
from r2v.emulator.prompt_cache import CachedTokens, PromptCaches
from r2v.errors import InputError
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed


@dataclass(kw_only=True)
class UploadedFile:
    """Record of an uploaded file; its bytes are in the .jsonl next to it."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: float
    late: int | None = None
    """HTTP status of calls that name the file too early (faults file_late_*)."""


@dataclass(kw_only=True)
class EmulatedBatch:
    """The provider's record of a batch. `faults` were drawn at its creation."""

    id: str
    provider: str
    created_at: float
    total: int
    faults: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    """Requests by final outcome: ok, error, expired, canceled, missing."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens by kind: prompt (of all requests), in, cached, out (of answered ones)."""
    polls: int = 0
    end_looks: int = 0
    """Polls since the end."""
    puzzled: bool = False
    """True once the fault `unknown_status` was shown."""
    ended_at: float | None = None
    cancel_at: float | None = None
    kept: int | None = None
    """Rows that ran before the cancel."""
    deleted: bool = False
    endpoint: str = ""
    input_file_id: str = ""
    metadata: dict[str, str] | None = None
    model: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """OpenAI: validation errors of a refused batch."""


class ServerState:
    """State of the server; see the module. All changes are made under `lock`."""

    def __init__(
        self,
        folder: Path,
        *,
        answer: Answer,
        faults: Iterable[Fault],
        seed: int,
        ledger: Path,
        limits: EmulatedLimits,
        lifecycle: Lifecycle,
        timing: Timing,
        clock: Callable[[], float],
        models: Collection[str],
        count: Callable[[str], int],
    ) -> None:
        self.folder, self.answer, self._models = folder, answer, frozenset(models)
        self.limits, self.lifecycle, self.timing, self.count = limits, lifecycle, timing, count
        faults = tuple(faults)
        self._clock, self._skew = clock, timing.skew if any(f.name == "clock_skew" for f in faults) else 0.0
        self.lock, self.stopping = threading.RLock(), threading.Event()
        for part in ("files", "batches"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(ledger)
        booked = read_ledger(ledger)
        self.injector = Injector(faults, seed=seed, fired=booked.fired, note=self.ledger.fault)
        self.injector.draw("server", "", "")
        self.files = _load(UploadedFile, folder / "files")
        self.batches = _load(EmulatedBatch, folder / "batches")
        for batch in sorted({bill.batch for bill in booked.bills if bill.batch} - self.batches.keys()):
            self.ledger.void(batch)
        self._serial = max(
            (int(name.rpartition("_")[2].rpartition("-")[2]) for name in (*self.files, *self.batches)), default=0
        )
        self.calls: Counter[tuple[str, str]] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self._caches = PromptCaches(count)
        self._bucket: dict[str, tuple[float, float]] = {}

    def now(self) -> float:
        """Return the server's clock in seconds since 1970."""
        return self._clock() + self._skew

    def refusal(self, provider: str, path: str, body: Mapping[str, Any]) -> ApiError | None:
        """Return the provider's refusal of a request to this endpoint, None if it is accepted."""
        day = datetime.fromtimestamp(self.now(), UTC).date()
        return refusal_of(provider, path, body, day, self._models)

    def pause(self, seconds: float) -> None:
        """Wait for `seconds` or until the emulator closes."""
        self.stopping.wait(seconds)

    def new_id(self, prefix: str) -> str:
        """Return a new id that sorts by creation."""
        with self.lock:
            self._serial += 1
            return f"{prefix}{self._serial:09d}"

    def results_path(self, batch: str) -> Path:
        """Return the file of a batch's rows."""
        return self.folder / "batches" / f"{batch}.rows"

    def file_path(self, file: str) -> Path:
        """Return the file of an upload's bytes."""
        return self.folder / "files" / f"{file}.jsonl"

    def save_file(self, file: UploadedFile) -> None:
        """Write an uploaded file's record."""
        with self.lock:
            write_json(self.folder / "files" / f"{file.id}.json", hashed(asdict(file)))
            self.files[file.id] = file

    def delete_file(self, file: str) -> None:
        """Delete an uploaded file and its record."""
        with self.lock:
            del self.files[file]
            (self.folder / "files" / f"{file}.json").unlink()
            self.file_path(file).unlink()

    def save_batch(self, batch: EmulatedBatch) -> None:
        """Write a batch's record."""
        with self.lock:
            write_json(self.folder / "batches" / f"{batch.id}.json", hashed(asdict(batch)))
            self.batches[batch.id] = batch

    def batches_of(self, provider: str) -> list[EmulatedBatch]:
        """Return one provider's batches, newest first."""
        with self.lock:
            return [b for b in reversed(self.batches.values()) if b.provider == provider and not b.deleted]

    def unfinished(self, provider: str) -> list[EmulatedBatch]:
        """Return the provider's batches that have not ended."""
        return [b for b in self.batches_of(provider) if b.ended_at is None]

    def created_lately(self, provider: str) -> int:
        """Return the number of batches created in the last hour."""
        return sum(self.now() - batch.created_at < 3600 for batch in self.batches_of(provider))

    def is_hidden(self, batch: EmulatedBatch) -> bool:
        """True if listings do not show the batch yet."""
        return "listed_late" in batch.faults and self.now() - batch.created_at < self.timing.late

    @contextmanager
    def serving(self, provider: str, route: str) -> Iterator[None]:
        """Count a call, and a synchronous one as in flight during the block."""
        with self.lock:
            self.calls[provider, route] += 1
            self.in_flight[provider] += route == "sync"
            self.peak[provider] = max(self.peak[provider], self.in_flight[provider])
        try:
            yield
        finally:
            with self.lock:
                self.in_flight[provider] -= route == "sync"

    def cached(self, request: EmulatedRequest) -> CachedTokens:
        """Return the prompt tokens read from and written to the prompt cache, and update it."""
        with self.lock:
            return self._caches.split(request, self.now())

    def take_call(self, provider: str) -> tuple[int, float, float] | None:
        """Take a synchronous call from the provider's bucket and return (calls left, seconds to wait, 0 if the call is
        allowed, seconds until the bucket is full); None without a limit."""
        if self.limits.calls_per_minute is None:
            return None
        rate, now = self.limits.calls_per_minute / 60, self.now()
        with self.lock:
            level, then = self._bucket.get(provider, (float(self.limits.burst), now))
            level = min(float(self.limits.burst), level + (now - then) * rate)
            wait = max(0.0, (1 - level) / rate)
            level -= level >= 1
            self._bucket[provider] = (level, now)
        return int(level), wait, (self.limits.burst - level) / rate

    def close(self) -> None:
        """End all waits and close the ledger."""
        self.stopping.set()
        self.ledger.close()


Stored = TypeVar("Stored", UploadedFile, EmulatedBatch)


def _load(kind: type[Stored], folder: Path) -> dict[str, Stored]:
    """Return the records in a folder by id, oldest first. Raises InputError for a file that is no such record."""
    names = {item.name for item in fields(kind)}
    required = {item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING}
    records = {}
    for path in sorted(folder.glob("*.json")):
        record = read_hashed(path)
        if not required <= record.keys() <= names or record["id"] != path.stem:
            raise InputError(f"{path}: not a record of an emulated provider; name another folder")
        records[path.stem] = kind(**record)
    return records
