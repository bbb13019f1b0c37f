"""Project ledger: the spending journals of one checkout, as one process sees them.

    outputs/.replies/<run>.json      the entry of a journal: folder, payer, scope, cost
    outputs/.replies/changed         a random word, replaced with every write of an entry
    outputs/.replies/<run>.index     the index of a large journal, for processes that start
    outputs/.replies/project-cap     the cap on all journals together, if any; it binds every process
    outputs/.replies/ledger.lease    held while requests are claimed, or money is allotted

Replies and amounts are recorded in the journals alone, so no central file can contradict them: each journal has one
writer, and all processes read it. Two rules make them one reply cache under one cap:

- A request is *claimed*, under the lease and in the process's own journal, before it is sent. A process that finds it
  answered takes the answer; one that finds it claimed by a living process, or in a provider batch, waits for that.
- Money is *allotted*, under the lease and in the process's own entry, before it is reserved: a share of the money left
  under the caps. The unused quota of a dead process is free again, because its journal shows its commitments.

A deleted journal counts with the amounts in its entry; entries are never removed.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.errors import InputError, LeaseConflict
from r2v.llm.providers.provider_requests import RequestVerdict
from r2v.llm.providers.spending.journal_view import JournalView
from r2v.randomness import digest
from r2v.storage.files import write_json, write_text
from r2v.storage.integrity import hashed, read_hashed
from r2v.storage.paths import REPLIES

log = logging.getLogger(__name__)

_CAP = "project-cap"
_PAYER_KEY = "purse"
"""Key of `JournalEntry.payer` in the files of the ledger, which earlier versions wrote too."""

Scope = Mapping[str, Any]
"""The source of replies: provider, model, endpoint. Journals of equal scope share answers."""


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """The ledger's entry of one journal."""

    run: str
    """The nonce in its first row and in all its custom_ids."""
    folder: str
    """The journal's folder, relative to the checkout if inside it."""
    payer: str
    """The pipeline that pays, or outside of any a folder; journals of one payer share `teacher.max_usd`."""
    scope: dict[str, Any]
    open: bool
    """True if its writer is running or was killed; False after a regular end."""
    usd: float = 0.0
    """USD committed when it was last opened or closed."""
    answered: int = 0
    """Number of answers at that time."""
    allotted: float | None = None
    """The writer's quota in USD; None: no shared cap, or closed."""
    pool: str | None = None
    """The journal of the same process whose quota this one spends from; None: its own, if any."""


@dataclass(frozen=True, kw_only=True)
class Book:
    """The balance of one journal. usd: spent, lost, or reserved."""

    usd: float
    answered: int
    state: str
    """closed, being written, its writer was killed, or gone."""


class ProjectLedger:
    """The journals of the checkout at `root`."""

    def __init__(self, root: Path) -> None:
        self._root, self.folder = root, root / REPLIES
        self.lease = self.folder / "ledger.lease"
        self.lock = threading.RLock()
        """Held while files are read: claims and quotas are worked out in threads of their own."""
        self._entries: dict[str, JournalEntry] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._views: dict[str, JournalView] = {}
        self._seen = ""
        self.damaged: dict[str, str] = {}
        """Unreadable entries by run, with the reason."""

    def require_whole(self) -> None:
        """Raise InputError if an entry is unreadable: with unknown spending no cap holds."""
        for run, reason in self.damaged.items():
            if run not in self._entries:
                raise InputError(
                    f"{reason}; the spending of its journal is unknown: run the command of that journal again, "
                    "restore the file, or remove it, after which its spending no longer counts"
                )

    def name_of(self, folder: Path) -> str:
        """Return a folder in the form of the entries: relative to the checkout if inside it."""
        folder, root = folder.resolve(), self._root.resolve()
        return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()

    def write(self, entry: JournalEntry) -> None:
        """Write an entry; only the writer of its journal does. Raise EnvironmentFault if the disk refuses."""
        fields = asdict(entry)
        fields[_PAYER_KEY] = fields.pop("payer")
        write_json(self.folder / f"{entry.run}.json", hashed(fields))
        # one small read then tells another process whether any entry changed
        write_text(self.folder / "changed", secrets.token_hex(8))

    @property
    def cap(self) -> float | None:
        """The cap in USD on all journals together; None: no cap. Raise InputError if its file is damaged."""
        try:
            return float(read_hashed(self.folder / _CAP)["usd"])
        except FileNotFoundError:
            return None

    def set_cap(self, usd: float | None, *, ours: Collection[str] = ()) -> None:
        """Cap the spending of all processes of the project; None removes the cap. The caller holds the ledger's lease.
        Raise LeaseConflict if a running process began without a cap, which it would not notice. ours: journals of this
        process."""
        if usd is None:
            (self.folder / _CAP).unlink(missing_ok=True)
            return
        for entry in self.entries():
            bounded = entry.allotted is not None or entry.pool is not None
            if entry.open and not bounded and entry.run not in ours:
                view = self.view(entry)
                if view is not None and view.alive:
                    raise LeaseConflict(
                        f"{entry.folder}: a process that began without a project cap is writing it, and would not "
                        f"notice one of ${usd:g}; wait until it ends, or stop it, then run the same command again"
                    )
        write_json(self.folder / _CAP, hashed({"usd": usd}))

    def entries(self) -> list[JournalEntry]:
        """Return all entries as of now. A damaged one is logged and skipped: the answers of its journal are not
        used."""
        try:
            seen = (self.folder / "changed").read_text()
        except (OSError, ValueError):
            seen = ""
        if not seen or seen != self._seen:
            for path in sorted(self.folder.glob("*.json")):
                self._read(path)
            self._seen = seen
        return list(self._entries.values())

    def _read(self, path: Path) -> None:
        run = path.stem
        try:
            status = path.stat()
            stamp = status.st_mtime_ns, status.st_ino
            if self._stamps.get(run) != stamp:
                fields = {"payer" if key == _PAYER_KEY else key: value for key, value in read_hashed(path).items()}
                self._entries[run] = JournalEntry(**fields)
                self._stamps[run] = stamp
            self.damaged.pop(run, None)
        except FileNotFoundError:
            return  # being replaced; the new version is read with the next change
        except (InputError, OSError, TypeError) as error:
            if run not in self.damaged:
                log.warning("  ledger entry damaged; answers of its journal are not reused: error=%s", error)
            self.damaged[run] = str(error)

    def folder_of(self, entry: JournalEntry) -> Path:
        """Return the recorded folder of an entry's journal."""
        return self._root / entry.folder

    def view(self, entry: JournalEntry) -> JournalView | None:
        """Return an up-to-date view of an entry's journal; None if the journal is gone."""
        for folder in self._folders(entry):
            view = self._views.get(entry.run)
            if view is None or view.folder != folder:
                view = self._views[entry.run] = JournalView(folder, entry.run)
                view.remember(self.index_of(entry))
            try:
                view.look()
            except (FileNotFoundError, NotADirectoryError):  # moved or deleted: try the next folder
                self._views.pop(entry.run)
                continue
            return view
        return None

    def index_of(self, entry: JournalEntry) -> Path:
        """Return the path of the index of an entry's journal."""
        return self.folder / f"{entry.run}.index"

    def _folders(self, entry: JournalEntry) -> Iterator[Path]:
        """Yield the journal's folder, then those it may have been moved to when its artifact was made anew."""
        folder = self.folder_of(entry)
        yield folder
        yield from sorted(folder.parent.glob(f"{folder.name}-*"))

    def book(self, entry: JournalEntry) -> Book:
        """Return the balance of a journal now; that of its entry if the journal is closed or gone."""
        view = self.view(entry) if entry.open else None
        if view is not None:
            state = "being written" if view.alive else "its writer was killed"
            return Book(usd=view.committed, answered=view.answered, state=state)
        exists = self.folder_of(entry).is_dir()
        return Book(usd=self.committed(entry), answered=entry.answered, state="closed" if exists else "gone")

    def committed_by(self, payer: str) -> float:
        """Return the USD that a payer's journals have spent or reserved."""
        return sum(self.book(entry).usd for entry in self.entries() if entry.payer == payer)

    def committed(self, entry: JournalEntry) -> float:
        """Return the USD that a journal has spent or may yet spend; for a closed one, from its entry."""
        if not entry.open:
            return entry.usd
        view = self.view(entry)
        if view is None:  # deleted while open: count its whole quota, which may be spent
            return max(entry.usd, entry.allotted or 0.0)
        return max(view.committed, entry.allotted or 0.0) if view.alive else view.committed


class Replies:
    """The answers of one scope in all journals except the process's own, `run`."""

    def __init__(self, ledger: ProjectLedger, scope: Scope, run: str) -> None:
        self._ledger, self._scope, self._run = ledger, dict(scope), run
        self._views: dict[str, JournalView] = {}
        self._read: dict[str, JournalEntry] = {}
        """Entries by run of closed journals that were read completely."""

    def look(self) -> None:
        """Read the rows that other processes have written since the last look."""
        with self._ledger.lock:
            for entry in self._ledger.entries():
                if entry.run != self._run and entry.scope == self._scope and self._read.get(entry.run) != entry:
                    self._look_at(entry)

    def _look_at(self, entry: JournalEntry) -> None:
        view = self._ledger.view(entry)
        if view is None or view.folder != self._ledger.folder_of(entry):  # gone or moved
            self._views.pop(entry.run, None)
            return
        self._views[entry.run] = view
        if not entry.open:
            self._read[entry.run] = entry
            view.write_index(self._ledger.index_of(entry))

    @property
    def any_answer(self) -> bool:
        """True if any journal holds an answer, a preflight call's included."""
        return any(view.answered or view.called_before for view in list(self._views.values()))

    @property
    def preflight_lease(self) -> Path:
        """Path of the lease that is held during a preflight call."""
        return self._ledger.folder / f"preflight-{digest(json.dumps(self._scope, sort_keys=True)).hex()[:16]}.lease"

    def answer(self, key: str) -> RequestVerdict | None:
        """Return the answer of a reply key from any journal; None without one."""
        for view in list(self._views.values()):  # a copy: `look` may run in another thread
            if (verdict := view.answer(key)) is not None:
                return verdict
        return None

    def in_flight(self, key: str) -> JournalView | None:
        """Return the view of the journal with this request in a batch or claimed by a living process; None without
        one."""
        for view in list(self._views.values()):
            if view.in_batch(key) or view.claims(key):
                return view
        return None


def closed(entry: JournalEntry, *, usd: float, answered: int) -> JournalEntry:
    """Return the entry of a journal whose writer ends."""
    return replace(entry, open=False, usd=usd, answered=answered, allotted=None, pool=None)
