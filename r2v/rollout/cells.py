"""Cells: episodes to be played in one way, and what determines each play.

    cell = Cell(what="noisy r2v", identity=runner.identity.method("r2v", 0.4), specs=specs, play=play, kinds=(Episode,))
    player.play([cell])
    for records in player.records(cell): ...

A play is one spec (a task under a seed, a condition and a perturbation seed) played in the cell's way; it comes to some
dataclass records. Its key is the hash of everything that determines it, so two cells that ask for the same play, in two
stages or a year apart, share it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from r2v.envs.base import Task
from r2v.errors import EnvironmentFault
from r2v.llm.providers.remote import Unanswered
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.rollout.play_lines import REFUSED, BrokenPlay, fault_of
from r2v.rollout.session import EpisodeSpec

PLAYS_VERSION = 3
"""Raised whenever a play of the same identity would come out otherwise: nothing that was played before is used then."""

Play = Callable[[EpisodeSpec], Coroutine[Any, Any, Sequence[Any]]]
"""Plays one task; what it came to, as dataclass records."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Episodes that are played in one way."""

    what: str
    """Names the cell in progress bars and errors."""
    specs: Sequence[EpisodeSpec]
    play: Play
    kinds: tuple[type, ...]
    """The dataclasses of its records."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What determines a play beside its spec, as plain values: world, method, threshold, contents of models."""

    def play_keys(self) -> list[str]:
        """The keys of its plays, in the order of `specs`."""
        way = json.dumps([PLAYS_VERSION, self.identity], sort_keys=True)
        return [_key(way, spec) for spec in self.specs]


class CellPlayer(Protocol):
    """Plays cells, each play once."""

    def play(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play what is missing of all of them; `what` names the progress bar. Raises EnvironmentFault where the world
        broke in every play of one."""
        ...

    def records(self, cell: Cell) -> Iterator[Sequence[Any]]:
        """What each play of a cell that was played came to, in the order of its specs."""
        ...


class MemoryPlayer:
    """A player that keeps what it played in memory, for as long as it lives."""

    def __init__(self, waves: Waves) -> None:
        self._waves = waves
        self._played: dict[str, Sequence[Any]] = {}

    def play(self, cells: Sequence[Cell], what: str = "") -> None:
        """Play all of them in one run of the engine."""
        missing = {
            key: (cell, spec)
            for cell in cells
            for key, spec in zip(cell.play_keys(), cell.specs, strict=True)
            if key not in self._played
        }
        run_plays(self._waves, missing, self._played.__setitem__)
        for cell in cells:
            require_measured(cell, self.records(cell))

    def records(self, cell: Cell) -> Iterator[Sequence[Any]]:
        """What was played."""
        return (self._played[key] for key in cell.play_keys())


Keep = Callable[[str, Sequence[Any]], None]
"""Is handed a play's key, and what the play came to."""


def run_plays(waves: Waves, plays: Mapping[str, tuple[Cell, EpisodeSpec]], keep: Keep) -> None:
    """Play these (by key) in one run of the engine; each is handed to `keep` as it ends, and is in no memory after."""
    waves.run(partial(play_and_keep, key, cell, spec, keep) for key, (cell, spec) in plays.items())


async def play_and_keep(key: str, cell: Cell, spec: EpisodeSpec, keep: Keep) -> None:
    """Play one, and hand it to `keep`."""
    try:
        records = await cell.play(spec)
    except Unanswered as error:  # asked beside the episode: of a branch, a candidate, a score
        if not error.final:
            raise
        records = [BrokenPlay(reason=f"{REFUSED}{error}")]
    keep(key, records)


def measured(cell: Cell, player: CellPlayer, faults: list[str] | None = None) -> Iterator[Sequence[Any]]:
    """Play a cell; what each of its plays came to that no fault ended, neither of the world nor a refused question.
    The others are added to `faults`, and told in a line."""
    player.play([cell], cell.what)
    found: list[str] = []
    for records in player.records(cell):
        if (fault := fault_of(records)) is None:
            yield records
        else:
            found.append(fault)
    tell_faults(cell.what, found, len(cell.specs))
    if faults is not None:
        faults += found


def tell_faults(what: str, faults: Sequence[str], count: int) -> None:
    """Say how many of `count` plays measured nothing, and why the first did not."""
    if faults:
        logger.warning("  %s: %d of %d episodes were not measured, first: %s", what, len(faults), count, faults[0])


def require_measured(cell: Cell, played: Iterator[Sequence[Any]]) -> None:
    """Raises EnvironmentFault where the world broke in every play of a cell: nothing was measured."""
    faults = []
    for records in played:
        if (fault := fault_of(records)) is None:
            return
        faults.append(fault)
    if faults:
        raise EnvironmentFault(
            f"the world broke in all {len(faults)} episodes, first: {faults[0]}; mend it "
            "(`r2v check-env` tells what is wrong with a benchmark) and run the same command again"
        )


def _key(way: str, spec: EpisodeSpec) -> str:
    task = spec.task
    about: list[Any] = [task.task_id, task.goal, task.template_id, task.split]
    about += [spec.seed, spec.condition, spec.perturbation_seed, spec.method, spec.split, spec.run, spec.extra]
    text = f"{way}\n{json.dumps(about, sort_keys=True)}\n{_payload(task)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _payload(task: Task) -> str:
    """The task's payload as text; "" where a benchmark of one's own put into it what JSON cannot hold: such a task is
    known by its name, its goal and its benchmark's version."""
    try:
        return json.dumps(task.payload, sort_keys=True)
    except (TypeError, ValueError):
        return ""
