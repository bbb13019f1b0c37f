"""The project's ledger: all journals of what providers were paid in one checkout, as one process sees them.

    outputs/.replies/<run>.json      a journal: where it lies, who pays, what it is of, what it came to
    outputs/.replies/changed         a word that is new whenever one of these files is
    outputs/.replies/<run>.index     what a large journal holds, for who begins (`journal_index`)
    outputs/.replies/project-cap     what all of them may be billed, if that is bounded: it binds every process
    outputs/.replies/ledger.lease    held for as long as it takes to claim requests, or money

There is no second copy of a reply and no central book that could contradict the journals: each journal has one writer,
and everybody reads the others'. Two rules make of them one reply cache and one cap:

- A request is *claimed*, under the lease and in the own journal, before it is sent. Whoever finds it answered takes
  the answer; whoever finds it claimed by a living process, or in a provider batch, waits for that.
- Money is *allotted*, under the lease and in the own entry, before it is reserved: a share of what the caps leave.
  What a dead process had been allotted and has not committed is free again, because its journal says what it has.

A journal that is gone counts with what its entry says; nothing takes an entry away.
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
"""What decides whose replies they are: provider, model, endpoint."""


@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """A journal as the ledger knows it."""

    run: str
    """The nonce in its first row and in all its custom_ids."""
    folder: str
    """From the checkout, where it lies in there."""
    payer: str
    """Who pays: the journals of one pipeline, or of one folder outside of any, share `teacher.max_usd`."""
    scope: dict[str, Any]
    open: bool
    """Its writer has not ended, or was killed."""
    usd: float = 0.0
    """Committed when it was last opened or closed."""
    answered: int = 0
    """Answers, then."""
    allotted: float | None = None
    """USD that its writer may commit in all; None: nobody shares its caps, or it is closed."""
    pool: str | None = None
    """The journal of the same process whose `allotted` has room for this one's further spending; None: its own, if
    any."""


@dataclass(frozen=True, kw_only=True)
class Book:
    """What a journal comes to. usd: spent, perhaps spent, or reserved."""

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
        """Held while files are read: claims and allotments look in threads of their own."""
        self._entries: dict[str, JournalEntry] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._views: dict[str, JournalView] = {}
        self._seen = ""
        self.damaged: dict[str, str] = {}
        """By run: entries that cannot be read, and why."""

    def require_whole(self) -> None:
        """Raises InputError where what a journal has spent is not known: no cap could be kept."""
        for run, reason in self.damaged.items():
            if run not in self._entries:
                raise InputError(
                    f"{reason}; what its journal has spent is not known: run the command of that journal again, "
                    "restore the file, or remove it, and then its money counts no more"
                )

    def name_of(self, folder: Path) -> str:
        """A folder as entries name it."""
        folder, root = folder.resolve(), self._root.resolve()
        return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()

    def write(self, entry: JournalEntry) -> None:
        """Write an entry, its journal's only writer. Raises EnvironmentFault where the disk refuses."""
        fields = asdict(entry)
        fields[_PAYER_KEY] = fields.pop("payer")
        write_json(self.folder / f"{entry.run}.json", hashed(fields))
        write_text(self.folder / "changed", secrets.token_hex(8))

    @property
    def cap(self) -> float | None:
        """USD that all journals together may be billed; None: as much as they like. Raises InputError where it is
        damaged."""
        try:
            return float(read_hashed(self.folder / _CAP)["usd"])
        except FileNotFoundError:
            return None

    def set_cap(self, usd: float | None, *, ours: Collection[str] = ()) -> None:
        """Bound all processes of the project, or (None) none; the ledger's lease is held. Raises LeaseConflict where a
        process writes that began without a cap and would not heed this one. ours: journals of this process."""
        if usd is None:
            (self.folder / _CAP).unlink(missing_ok=True)
            return
        for entry in self.entries():
            bounded = entry.allotted is not None or entry.pool is not None
            if entry.open and not bounded and entry.run not in ours:
                view = self.view(entry)
                if view is not None and view.alive:
                    raise LeaseConflict(
                        f"{entry.folder}: a process that began without a cap of the project is writing it, and would "
                        f"not heed one of ${usd:g}; wait until it ends, or stop it, then type the same command"
                    )
        write_json(self.folder / _CAP, hashed({"usd": usd}))

    def entries(self) -> list[JournalEntry]:
        """All entries, as they are now; a damaged one is named and left out: its journal is nobody's cache."""
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
            return  # replaced just now: what replaced it is read next
        except (InputError, OSError, TypeError) as error:
            if run not in self.damaged:
                log.warning("  %s; the answers in its journal are not used elsewhere", error)
            self.damaged[run] = str(error)

    def folder_of(self, entry: JournalEntry) -> Path:
        """Where its journal should lie."""
        return self._root / entry.folder

    def view(self, entry: JournalEntry) -> JournalView | None:
        """A look into its journal, up to date; None where it is gone."""
        for folder in self._places(entry):
            view = self._views.get(entry.run)
            if view is None or view.folder != folder:
                view = self._views[entry.run] = JournalView(folder, entry.run)
                view.remember(self.index_of(entry))
            try:
                view.look()
            except (FileNotFoundError, NotADirectoryError):
                self._views.pop(entry.run)
                continue
            return view
        return None

    def index_of(self, entry: JournalEntry) -> Path:
        """Where what its journal holds is remembered."""
        return self.folder / f"{entry.run}.index"

    def _places(self, entry: JournalEntry) -> Iterator[Path]:
        """Its folder; or where it was set aside when its artifact was made anew."""
        folder = self.folder_of(entry)
        yield folder
        yield from sorted(folder.parent.glob(f"{folder.name}-*"))

    def book(self, entry: JournalEntry) -> Book:
        """What a journal comes to now; of one that is gone, what its entry says."""
        view = self.view(entry) if entry.open else None
        if view is not None:
            state = "being written" if view.alive else "its writer was killed"
            return Book(usd=view.committed, answered=view.answered, state=state)
        lies = self.folder_of(entry).is_dir()
        return Book(usd=self.committed(entry), answered=entry.answered, state="closed" if lies else "gone")

    def committed_by(self, payer: str) -> float:
        """USD that the journals of a pipeline have spent or reserved."""
        return sum(self.book(entry).usd for entry in self.entries() if entry.payer == payer)

    def committed(self, entry: JournalEntry) -> float:
        """USD that a journal has spent or may yet spend; of a closed one what its entry says."""
        if not entry.open:
            return entry.usd
        view = self.view(entry)
        if view is None:
            return max(entry.usd, entry.allotted or 0.0)
        return max(view.committed, entry.allotted or 0.0) if view.alive else view.committed


class Replies:
    """The answers of one scope in all journals but one's own: `run`."""

    def __init__(self, ledger: ProjectLedger, scope: Scope, run: str) -> None:
        self._ledger, self._scope, self._run = ledger, dict(scope), run
        self._views: dict[str, JournalView] = {}
        self._read: dict[str, JournalEntry] = {}
        """By run: closed journals that were read to their end."""

    def look(self) -> None:
        """Take in what others have written since."""
        with self._ledger.lock:
            for entry in self._ledger.entries():
                if entry.run != self._run and entry.scope == self._scope and self._read.get(entry.run) != entry:
                    self._look_at(entry)

    def _look_at(self, entry: JournalEntry) -> None:
        view = self._ledger.view(entry)
        if view is None or view.folder != self._ledger.folder_of(entry):  # gone, or set aside
            self._views.pop(entry.run, None)
            return
        self._views[entry.run] = view
        if not entry.open:
            self._read[entry.run] = entry
            view.write_index(self._ledger.index_of(entry))

    @property
    def any_answer(self) -> bool:
        """Whether anybody has been answered, be it to the call before a run."""
        return any(view.answered or view.called_before for view in list(self._views.values()))

    @property
    def preflight_lease(self) -> Path:
        """Held for as long as the call before a run takes."""
        return self._ledger.folder / f"preflight-{digest(json.dumps(self._scope, sort_keys=True)).hex()[:16]}.lease"

    def answer(self, key: str) -> RequestVerdict | None:
        """The answer of this key, whoever was given it."""
        for view in list(self._views.values()):  # another thread may look meanwhile
            if (verdict := view.answer(key)) is not None:
                return verdict
        return None

    def in_flight(self, key: str) -> JournalView | None:
        """Whose batch or living claim it is."""
        for view in list(self._views.values()):
            if view.in_batch(key) or view.claims(key):
                return view
        return None


def closed(entry: JournalEntry, *, usd: float, answered: int) -> JournalEntry:
    """The entry of a journal whose writer ends."""
    return replace(entry, open=False, usd=usd, answered=answered, allotted=None, pool=None)
