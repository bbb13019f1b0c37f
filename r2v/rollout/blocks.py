"""Blocks: some tasks with all that is to be played of them, which is what one process takes at a time.

    player = BlockPlayer(waves, EpisodeCache.of(work), size=256)
    player.play(cells)                          # what no process has played yet; returns when all of it is there
    for records in player.records(cell): ...    # read from the cache, one play at a time

All cells of a block are played side by side, so methods that share a history share its replies, and the next block is
taken when conversations become free for it, so that the engine's waves stay wide however small blocks are (guided
self-scheduling). A block is held by a lease: any number of processes may play the same cells, each takes what is free
as long as it has not more in hand than its share of what is missing, or than fills its engine where worlds compute
(side by side they are one chain of waves), and what a dead one held is taken up by the next.
Which block a task lies in depends on the tasks, their seeds and conditions, and the size; not on how many methods play
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from r2v.config import RolloutConfig
from r2v.errors import EnvironmentFault, InputError
from r2v.llm.waves import Waves
from r2v.log import Progress
from r2v.rollout.cells import Cell, play_and_keep, require_measured
from r2v.rollout.episode_cache import EpisodeCache, lease_of
from r2v.rollout.hand import Hand
from r2v.rollout.players import Players
from r2v.rollout.session import EpisodeSpec
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST

Sleep = Callable[[float], None]

_MOST_IN_HAND = 16
"""Plays that a process holds at most, in widths of its engine: methods share histories, so that many are one wave."""
_MOST_TAKEN = 64
"""Blocks that are taken at a time, at most: each is a lease with a heartbeat."""
_GIVE_UP = 3
"""How often what was just played may turn out damaged when it is read."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some tasks with all that is to be played of them: plays by key."""

    name: str
    plays: dict[str, tuple[Cell, EpisodeSpec]]

    def missing(self, cache: EpisodeCache) -> dict[str, tuple[Cell, EpisodeSpec]]:
        """What nobody has played."""
        return {key: play for key, play in self.plays.items() if key not in cache}


def block_size(rollout: RolloutConfig) -> int:
    """How many episodes of one method a block holds: wide enough that the engine's waves stay full until its end."""
    if rollout.episodes_per_block != "auto":
        return int(rollout.episodes_per_block)
    return 4 * rollout.max_conversations


def blocks_of(cells: Sequence[Cell], size: int) -> list[Block]:
    """Cut the cells' tasks, in their order, into blocks that each hold `size` or more distinct (task, seed,
    perturbation seed, condition), the last one fewer. Within a block the plays stand cell by cell."""
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
    plays: list[dict[str, tuple[Cell, EpisodeSpec]]] = [{} for _ in range(number + 1 if points else 0)]
    for cell in cells:
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True):
            plays[block_of[spec.task.task_id]].setdefault(key, (cell, spec))
    names = {cell.specs[0].split or "plays": None for cell in cells if cell.specs}
    stem = "-".join(names)
    return [Block(name=f"{stem}-{index:04d}", plays=some) for index, some in enumerate(plays)]


class StageFinished(Exception):
    """The artifact that a helper plays for is there: nothing is left to play."""


class BlockPlayer:
    """Plays cells block by block, into the episode cache and beside whoever else plays them.

    size: of a block (see `blocks_of`). finished: whether the artifact that a helper plays for is there; then
    StageFinished is raised. work: is told what was found played. pause: seconds between two looks at blocks that others
    hold.
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
        """The player of a stage's work."""
        manifest = work.folder / ARTIFACT_MANIFEST
        return cls(
            waves,
            EpisodeCache.of(work),
            block_size(rollout),
            finished=lambda: work.helping and manifest.exists(),
            work=work,
        )

    def play(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all that is missing, as `fill` does. Raises EnvironmentFault where the world broke in every play of a
        cell: that is forgotten, so that the same command plays it again."""
        self.fill(cells, what)
        for cell in cells:
            try:
                require_measured(cell, self.records(cell))
            except EnvironmentFault:
                self.cache.forget_faults()
                raise

    def fill(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all that is missing, whatever it comes to, and wait for what others are playing. `what` names the
        progress, which counts on over calls of one name."""
        blocks = blocks_of(cells, self._size)
        before, plays = self._counted.get(what, 0), sum(len(block.plays) for block in blocks)
        self._counted[what] = before + plays
        if any(key in self.cache and key not in self._own for block in blocks for key in block.plays):
            self._found(what)
        blocks = [block for block in blocks if block.missing(self.cache)]
        if blocks:
            self.cache.make_folder()
            missing = sum(len(block.missing(self.cache)) for block in blocks)
            with (
                Progress(what, before + plays, before + plays - missing) as self._bar,
                Players(self.cache.folder) as all_,
            ):
                self._play_all(blocks, what, all_)

    def _play_all(self, blocks: list[Block], what: str, players: Players) -> None:
        """Play what is free until nothing is missing."""
        while blocks:
            open_before = sum(len(block.missing(self.cache)) for block in blocks)
            self._played = 0
            held = self._play_free(blocks, partial(_share, open_before, players))
            if len(held) == len(blocks):
                self._sleep(self._pause)
            self.cache.refresh()
            blocks = [block for block in held if block.missing(self.cache)]
            open_now = sum(len(block.missing(self.cache)) for block in blocks)
            if (others := open_before - open_now - self._played) > 0:
                self._found(what)
                self._bar.advance(others, blocks_left=len(blocks))

    def _found(self, what: str) -> None:
        """Note that not all was played here and now."""
        if self._work is not None:
            self._work.found_played.add(what)

    def records(self, cell: Cell) -> Iterator[Sequence[Any]]:
        """What each play of a cell came to, in the order of its specs, read one at a time; what turns out damaged is
        played again."""
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True):
            yield self._record(cell, key, spec)

    def _record(self, cell: Cell, key: str, spec: EpisodeSpec) -> Sequence[Any]:
        for _ in range(_GIVE_UP):
            if (records := self.cache.read(key, cell.kinds)) is not None:
                return records
            self._play_free([Block(name="again", plays={key: (cell, spec)})])
            self.cache.refresh()
        raise InputError(f"{self.cache.folder}: what is written there cannot be read back; remove the folder")

    def _play_free(self, blocks: Sequence[Block], share: Callable[[int], float] = lambda played: 1) -> list[Block]:
        """Play what no other process holds, in one run of the engine; what others hold. share: how many of the plays
        that are missing this process may have in hand before it takes a further block, once so many were `played`."""
        held: list[Block] = []
        self.cache.make_folder()
        with Hand(self.cache) as hand:
            self._waves.run(self._conversations(blocks, share, hand, held))
        return held

    def _conversations(
        self, blocks: Sequence[Block], share: Callable[[int], float], hand: Hand, held: list[Block]
    ) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """The plays of the blocks, made one by one as the engine has room. Some blocks are taken at a time, while this
        process has less in hand than its share, and are played cell by cell like one: as many different histories side
        by side as there are."""
        least = self._waves.width if self._waves.is_patient else 1
        most, known, rest = float(least), self.cache.count(), list(reversed(blocks))
        while rest:
            while hand.plays >= most:
                yield partial(hand.wait, self._waves)
            taken: list[tuple[Block, dict[str, tuple[Cell, EpisodeSpec]]]] = []
            while rest and hand.plays < most and len(taken) < _MOST_TAKEN:
                block = rest.pop()
                missing = self._take(block, hand)
                if missing is None:
                    held.append(block)
                elif missing:
                    taken.append((block, missing))
                    most = max(least, min(_MOST_IN_HAND * self._waves.width, share(self.cache.count() - known)))
                self._bar.advance(0, blocks_left=len(held) + len(rest))
            for block, key, (cell, spec) in _cell_by_cell(taken):
                yield partial(play_and_keep, key, cell, spec, partial(self._keep, hand, block))

    def _take(self, block: Block, hand: Hand) -> dict[str, tuple[Cell, EpisodeSpec]] | None:
        """Take a block; what is missing of it. None where another process holds it."""
        if self._finished():
            raise StageFinished
        if not hand.take(block.name, lease_of(self.cache.folder / f"{block.name}.jsonl")):
            return None
        self.cache.refresh()  # a holder before us may have finished it
        missing = block.missing(self.cache)
        hand.hold(block.name, missing)
        return missing

    def _keep(self, hand: Hand, block: Block, key: str, records: Sequence[Any]) -> None:
        self.cache.add(block.name, key, records)
        self._own.add(key)
        self._played += 1
        self._bar.advance()
        hand.end(block.name, key)


def _share(missing: int, players: Players, played: int) -> float:
    """Half of one process's part of what was missing before so many were played: less and less of it, so that all end
    at about the same time."""
    processes = players.count()
    return (missing - played) / (2 * processes if processes > 1 else 1)


def _cell_by_cell(
    taken: Sequence[tuple[Block, dict[str, tuple[Cell, EpisodeSpec]]]],
) -> Iterator[tuple[Block, str, tuple[Cell, EpisodeSpec]]]:
    """The plays of these blocks in the order in which one block of all their tasks would have them."""
    plays = [(block, key, play) for block, missing in taken for key, play in missing.items()]
    places: dict[int, int] = {}
    for _, _, (cell, _) in plays:
        places.setdefault(id(cell), len(places))
    yield from sorted(plays, key=lambda play: places[id(play[2][0])])
