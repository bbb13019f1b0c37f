"""The work queue: cells are cut into blocks of plays, which any number of worker processes lease and play.

    cell = Cell(what="noisy r2v", identity=runner.identity.method("r2v", 0.4), specs=specs, play=play, kinds=(Episode,))
    player = BlockPlayer(waves, EpisodeCache.of(work), size=256)
    player.play([cell])                         # returns when every play is in the cache
    for records in player.records(cell): ...    # read from the cache, one play at a time

A cell is a set of episodes to be played in one way. A play is one of its specs (a task under a seed, a condition and a
perturbation seed) played in that way; its result is some dataclass records. A block is some tasks with all their plays,
in all cells; it depends on the tasks, their seeds and conditions, and the size, and not on the number of methods.

A worker leases a block while it plays it. The cells of a block are played side by side, so that methods that share a
history share its replies, and the next block is taken when conversations become free for it, so that the engine's waves
stay wide even for small blocks (guided self-scheduling). A worker takes no block while it holds more than its share
of the missing plays, or, where worlds compute (side by side they are one chain of waves), than fill its engine. A
worker that is killed loses the plays in flight; its leases expire, and another worker takes its blocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from r2v.config import RolloutConfig
from r2v.envs.base import Task
from r2v.errors import EnvironmentFault, InputError, LeaseConflict
from r2v.llm.providers.remote import Unanswered
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.progress import Progress
from r2v.rollout.episode_cache import BrokenPlay, EpisodeCache, fault_of, lease_of
from r2v.rollout.session import REFUSED, EpisodeSpec
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.lease import holder, lease

PLAYS_VERSION = 3
"""Part of every play's key; raised when a play of the same identity would give other records, so that older plays are
not reused."""

_MOST_HELD = 16
"""Most plays that a worker holds, in widths of its engine: methods share histories, so several plays ask one
request."""
_MOST_LEASED = 64
"""Most blocks leased at a time: each lease has a heartbeat."""
_ATTEMPTS = 3
"""Times that a play is read, and played again if its line turns out damaged."""
_WORKER = "player-"
"""Prefix of the name of a worker's own lease."""

Play = Callable[[EpisodeSpec], Coroutine[Any, Any, Sequence[Any]]]
"""Plays one spec; returns dataclass records."""
Sleep = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Episodes to be played in one way."""

    what: str
    """Name of the cell in progress bars and errors."""
    specs: Sequence[EpisodeSpec]
    play: Play
    kinds: tuple[type, ...]
    """The dataclasses of its records."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that determine a play together with its spec: world, method, threshold, contents of models."""

    def play_keys(self) -> list[str]:
        """Return the keys of its plays, in the order of `specs`: 32 hex digits each, a hash of everything that
        determines the play. Cells of any stage and run that need the same play share it."""
        way = json.dumps([PLAYS_VERSION, self.identity], sort_keys=True)
        return [_key(way, spec) for spec in self.specs]


def _key(way: str, spec: EpisodeSpec) -> str:
    task = spec.task
    about: list[Any] = [task.task_id, task.goal, task.template_id, task.split]
    about += [spec.seed, spec.condition, spec.perturbation_seed, spec.method, spec.split, spec.run, spec.extra]
    text = f"{way}\n{json.dumps(about, sort_keys=True)}\n{_payload(task)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _payload(task: Task) -> str:
    """Return the task's payload as text; "" where a user's benchmark put values into it that JSON cannot hold. Such a
    task is identified by its name, its goal and its benchmark's version."""
    try:
        return json.dumps(task.payload, sort_keys=True)
    except (TypeError, ValueError):
        return ""


async def play_and_keep(key: str, cell: Cell, spec: EpisodeSpec, keep: Callable[[str, Sequence[Any]], None]) -> None:
    """Play one spec of a cell, and pass its key and records to `keep`. Raises Unanswered where a reply may yet
    come."""
    try:
        records = await cell.play(spec)
    except Unanswered as error:  # of a branch, a candidate or a score; `Session.live` handles the episode's own
        if not error.final:
            raise
        records = [BrokenPlay(reason=f"{REFUSED}{error}")]
    keep(key, records)


def measured(cell: Cell, player: BlockPlayer, faults: list[str] | None = None) -> Iterator[Sequence[Any]]:
    """Play a cell, and yield the records of each play without a fault (the world broke, a request was refused). The
    others' reasons are added to `faults`, and logged in one line. Raises as `BlockPlayer.play` does."""
    player.play([cell], cell.what)
    reasons: list[str] = []
    for records in player.records(cell):
        if (fault := fault_of(records)) is None:
            yield records
        else:
            reasons.append(fault)
    log_faults(cell.what, reasons, len(cell.specs))
    if faults is not None:
        faults += reasons


def log_faults(what: str, faults: Sequence[str], count: int) -> None:
    """Log how many of `count` plays measured nothing, and the first one's reason."""
    if faults:
        logger.warning("  not measured: cell=%s episodes=%d/%d first_reason=%s", what, len(faults), count, faults[0])


def require_measured(played: Iterator[Sequence[Any]]) -> None:
    """Raise EnvironmentFault where the world broke in every play of a cell: nothing was measured."""
    faults = []
    for records in played:
        if (fault := fault_of(records)) is None:
            return
        faults.append(fault)
    if faults:
        raise EnvironmentFault(
            f"the world broke in all {len(faults)} episodes, first: {faults[0]}; fix it "
            "(`r2v check-env` lists a benchmark's errors) and run the same command again"
        )


Plays = dict[str, tuple[Cell, EpisodeSpec]]
"""Plays by their keys."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block: the tasks, with all their plays, that one worker leases at a time."""

    name: str
    plays: Plays

    def missing(self, cache: EpisodeCache) -> Plays:
        """Return the plays that are not in the cache."""
        return {key: play for key, play in self.plays.items() if key not in cache}


def block_size(rollout: RolloutConfig) -> int:
    """Return the episodes of one method in a block; auto: enough for the engine's waves to stay full to its end."""
    if rollout.episodes_per_block != "auto":
        return int(rollout.episodes_per_block)
    return 4 * rollout.max_conversations


def blocks_of(cells: Sequence[Cell], size: int) -> list[Block]:
    """Return the cells' tasks, in their order, cut into blocks that each hold `size` or more distinct (task, seed,
    perturbation seed, condition), the last one fewer. Within a block plays are ordered by cell."""
    points: dict[str, set[tuple[Any, ...]]] = {}
    for cell in cells:
        for spec in cell.specs:
            seen = points.setdefault(spec.task.task_id, set())
            seen.add((spec.seed, spec.perturbation_seed, spec.condition))
    number, weight, block_of = 0, 0, dict[str, int]()
    for task, seen in points.items():
        if weight >= size:
            number, weight = number + 1, 0
        block_of[task] = number
        weight += len(seen)
    plays: list[Plays] = [{} for _ in range(number + 1 if points else 0)]
    for cell in cells:
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True):
            plays[block_of[spec.task.task_id]].setdefault(key, (cell, spec))
    names = {cell.specs[0].split or "plays": None for cell in cells if cell.specs}
    stem = "-".join(names)
    return [Block(name=f"{stem}-{index:04d}", plays=some) for index, some in enumerate(plays)]


class StageFinished(Exception):
    """The artifact that a helper plays for is finished: nothing is left to play."""


class HeldBlocks:
    """The blocks that this worker leases, by name, and their unfinished plays.

        with HeldBlocks(cache) as held:
            if held.take("evaluation-0007"):                # False: another worker holds it
                held.set_missing("evaluation-0007", keys)
                ...
                held.end("evaluation-0007", key)            # the end of its last play releases the block

    Leaving the block of code, by an exception too, syncs the cache's files and releases all leases.
    """

    def __init__(self, cache: EpisodeCache) -> None:
        self._cache = cache
        self._leases: dict[str, ExitStack] = {}
        self._open: dict[str, set[str]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def plays(self) -> int:
        """The number of unfinished plays of held blocks."""
        return sum(len(keys) for keys in self._open.values())

    def take(self, block: str) -> bool:
        """Lease a block; return False if another worker holds it."""
        holding = ExitStack()
        try:
            holding.enter_context(lease(lease_of(self._cache.folder / f"{block}.jsonl")))
        except LeaseConflict:
            return False
        self._leases[block] = holding
        return True

    def set_missing(self, block: str, keys: Iterable[str]) -> None:
        """Set which plays of a leased block are missing; a block without any is released."""
        self._open[block] = set(keys)
        self._release_played(block)

    def end(self, block: str, key: str) -> None:
        """Record that a play is in the cache, and wake all waiting coroutines."""
        self._open[block].discard(key)
        self._release_played(block)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():  # done: its coroutine was cancelled
                future.set_result(None)

    async def wait(self, waves: Waves) -> None:
        """Return when a play of a held block ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await waves.wait(future)

    def _release_played(self, block: str) -> None:
        if not self._open[block]:
            self._cache.close(block)
            del self._open[block]
            self._leases.pop(block).close()

    def __enter__(self) -> HeldBlocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as leases:  # releases every lease, even if one release fails
            for holding in self._leases.values():
                leases.push(holding)
            self._leases = {}
            self._cache.close()  # before the leases go: their next holders read and append to the files


@contextmanager
def working_in(folder: Path) -> Iterator[Callable[[], int]]:
    """Count this process among the workers of an attempt's folder; yield a function that returns their number. Each
    worker holds a lease of its own; a dead worker's lease is removed at the next count."""
    # a random name: process ids repeat across machines
    own = folder / f"{_WORKER}{secrets.token_hex(4)}.lease"
    holding = ExitStack()
    holding.enter_context(lease(own))
    try:
        yield lambda: 1 + sum(_lives(path) for path in folder.glob(f"{_WORKER}*.lease") if path != own)
    finally:
        with suppress(LeaseConflict):  # taken for dead and removed by another worker; the lease only counts
            holding.close()


def _lives(path: Path) -> bool:
    """True if a live process holds the lease; a dead one's is removed."""
    if holder(path) is not None:
        return True
    with suppress(LeaseConflict), lease(path):  # another worker may remove it at the same time
        pass
    return False


class BlockPlayer:
    """A worker: it plays cells block by block into the episode cache, along with any other workers.

    size: the least number of episodes of a block (see `blocks_of`). finished: True once the artifact that a helper
    plays for is finished; then StageFinished is raised. work: records which cells reuse plays. pause: seconds between
    two tries to lease blocks that others hold.
    """

    def __init__(
        self,
        waves: Waves,
        cache: EpisodeCache,
        size: int,
        *,
        finished: Callable[[], bool] = lambda: False,
        work: Work | None = None,
        pause: float = 0.5,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._waves, self.cache, self._size = waves, cache, size
        self._finished, self._pause, self._sleep = finished, pause, sleep
        self._counted: dict[str, int] = {}
        self._bar, self._played = Progress("", 0), 0
        self._work, self._own = work, set[str]()

    @classmethod
    def of(cls, waves: Waves, work: Work, rollout: RolloutConfig) -> BlockPlayer:
        """Return the worker of a stage's attempt."""
        manifest = work.folder / ARTIFACT_MANIFEST
        return cls(
            waves,
            EpisodeCache.of(work),
            block_size(rollout),
            finished=lambda: work.helping and manifest.exists(),
            work=work,
        )

    def play(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all missing plays, as `fill` does. Raises EnvironmentFault where the world broke in every play of a
        cell; these plays are removed, so that the same command plays them again."""
        self.fill(cells, what)
        for cell in cells:
            try:
                require_measured(self.records(cell))
            except EnvironmentFault:  # a fixed world must not find its old faults
                self.cache.forget_faults()
                raise

    def fill(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all missing plays, faults included, and wait for those of other workers. `what` names the progress bar,
        which continues over calls of one name. Raises StageFinished, EnvironmentFault where the disk refuses, and the
        errors of a play."""
        blocks = blocks_of(cells, self._size)
        before, plays = self._counted.get(what, 0), sum(len(block.plays) for block in blocks)
        self._counted[what] = before + plays
        if any(key in self.cache and key not in self._own for block in blocks for key in block.plays):
            self._note_reuse(what)
        blocks = [block for block in blocks if block.missing(self.cache)]
        if blocks:
            self.cache.make_folder()
            missing = sum(len(block.missing(self.cache)) for block in blocks)
            with (
                Progress(what, before + plays, before + plays - missing) as self._bar,
                working_in(self.cache.folder) as workers,
            ):
                self._play_all(blocks, what, workers)

    def _play_all(self, blocks: list[Block], what: str, workers: Callable[[], int]) -> None:
        """Play free blocks until nothing is missing."""
        while blocks:
            open_before = sum(len(block.missing(self.cache)) for block in blocks)
            self._played = 0
            of_others = self._play_free(blocks, partial(_share, open_before, workers))
            if len(of_others) == len(blocks):  # all leased elsewhere: poll, since workers exchange files only
                self._sleep(self._pause)
            self.cache.refresh()
            blocks = [block for block in of_others if block.missing(self.cache)]
            open_now = sum(len(block.missing(self.cache)) for block in blocks)
            if (others := open_before - open_now - self._played) > 0:  # plays of other workers
                self._note_reuse(what)
                self._bar.advance(others, blocks_left=len(blocks))

    def _note_reuse(self, what: str) -> None:
        """Record that some plays of `what` are not this process's own."""
        if self._work is not None:
            self._work.found_played.add(what)

    def records(self, cell: Cell) -> Iterator[Sequence[Any]]:
        """Yield the records of each play of a cell, in the order of its specs, read one at a time. A damaged play is
        played again. Raises InputError where it is damaged each time."""
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True):
            yield self._record(cell, key, spec, cell.kinds)

    def plain_episodes(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """Yield the fields of each play's episode, its first record: copying them is faster than copying
        dataclasses."""
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True):
            (_, fields), *_ = self._record(cell, key, spec, None)
            yield fields

    def _record(self, cell: Cell, key: str, spec: EpisodeSpec, kinds: Sequence[type] | None) -> Sequence[Any]:
        for _ in range(_ATTEMPTS):
            if (records := self.cache.read(key, kinds)) is not None:
                return records
            self._play_free([Block(name="again", plays={key: (cell, spec)})])
            self.cache.refresh()
        raise InputError(f"{self.cache.folder}: plays written there cannot be read back; remove the folder")

    def _play_free(self, blocks: Sequence[Block], share: Callable[[int], float] = lambda played: 1) -> list[Block]:
        """Play the blocks that no other worker holds, in one run of the engine; return the others. share: after so
        many plays, the number of unfinished ones above which this worker takes no further block."""
        of_others: list[Block] = []
        self.cache.make_folder()
        with HeldBlocks(self.cache) as held:
            self._waves.run(self._conversations(blocks, share, held, of_others))
        return of_others

    def _conversations(
        self, blocks: Sequence[Block], share: Callable[[int], float], held: HeldBlocks, of_others: list[Block]
    ) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Yield the plays of the blocks one by one, as the engine has room. Several blocks are leased at a time, while
        this worker holds less than its share, and are played cell by cell like one block, so that different histories
        run side by side."""
        # patient waves come from worlds that compute: fewer plays than the width would leave them narrow
        least = self._waves.width if self._waves.is_patient else 1
        most, num_cached, rest = float(least), self.cache.count(), list(reversed(blocks))
        while rest:
            while held.plays >= most:
                yield partial(held.wait, self._waves)  # inside the engine: running conversations go on
            leased: list[tuple[Block, Plays]] = []
            while rest and held.plays < most and len(leased) < _MOST_LEASED:
                block = rest.pop()
                missing = self._take(block, held)
                if missing is None:
                    of_others.append(block)
                elif missing:
                    leased.append((block, missing))
                    most = max(least, min(_MOST_HELD * self._waves.width, share(self.cache.count() - num_cached)))
                self._bar.advance(0, blocks_left=len(of_others) + len(rest))
            for block, key, (cell, spec) in _cell_by_cell(leased):
                yield partial(play_and_keep, key, cell, spec, partial(self._keep, held, block))

    def _take(self, block: Block, held: HeldBlocks) -> Plays | None:
        """Lease a block; return its missing plays, or None where another worker holds it."""
        if self._finished():
            raise StageFinished
        if not held.take(block.name):
            return None
        self.cache.refresh()  # its former holder may have finished it
        missing = block.missing(self.cache)
        held.set_missing(block.name, missing)
        return missing

    def _keep(self, held: HeldBlocks, block: Block, key: str, records: Sequence[Any]) -> None:
        self.cache.add(block.name, key, records)
        self._own.add(key)
        self._played += 1
        self._bar.advance()
        held.end(block.name, key)


def _share(missing: int, workers: Callable[[], int], played: int) -> float:
    """Return half of one worker's part of the missing plays, after so many played: it shrinks, so that all workers end
    at about the same time. A single worker's share is all of them."""
    count = workers()
    return (missing - played) / (2 * count if count > 1 else 1)


def _cell_by_cell(
    leased: Sequence[tuple[Block, Plays]],
) -> Iterator[tuple[Block, str, tuple[Cell, EpisodeSpec]]]:
    """Yield the plays of these blocks in the order of one block of all their tasks."""
    plays = [(block, key, play) for block, missing in leased for key, play in missing.items()]
    order: dict[int, int] = {}  # by id: a cell's dictionaries cannot be hashed
    for _, _, (cell, _) in plays:
        order.setdefault(id(cell), len(order))
    yield from sorted(plays, key=lambda play: order[id(play[2][0])])
