"""Outcomes: executed episodes reduced to numbers, on a grid in which nothing can be missing.

An episode becomes an `Outcome`, a handful of counts read off its steps; outcomes become a `Grid` of tasks x
seeds for each (condition, method, operating point). A cell that was never played, or was played twice, is an
error. Where the world failed (`env_fault`) the cell is NaN: counted and reported apart, in no mean. A model that
refuses or does not answer has failed: its cell is 0. Success is the environment's verdict alone: an escalation never
enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from r2v.data.episode import MODEL_FAILURES, Episode, EpisodeOutcome, Step
from r2v.data.injections import INJECTION, obeyed_injection
from r2v.errors import InputError
from r2v.evaluation.measures.statistics import BoolArray, FloatArray
from r2v.evaluation.setup import MAIN, OPERATING_POINT, Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One executed episode, reduced to the counts of the tables."""

    method: str
    condition: str
    point: str
    task_id: str
    seed: int
    success: bool
    steps: int
    escalated: int
    cost: float
    cached_cost: float
    """The list price, where no cache was reckoned with."""
    latency: float
    tokens_llm: int
    tokens_slm: int
    tokens_verifier: int
    injected: bool
    obeyed: bool
    categories: frozenset[str]
    env_fault: bool
    kind: EpisodeOutcome = "played"

    @classmethod
    def of(cls, episode: Episode) -> Outcome:
        """Read the counts off an episode's steps. Raises InputError for one that was not executed."""
        if not episode.executed:
            raise InputError(
                f"episode {episode.episode_id} was imported, not executed; it may be learnt from, and has no place "
                "in a table of results"
            )
        tokens = episode.tokens
        return cls(
            method=episode.method,
            condition=episode.condition,
            point=episode.extra.get(OPERATING_POINT, MAIN),
            task_id=episode.metadata.task_id,
            seed=episode.metadata.seed,
            success=episode.success,
            steps=len(episode.steps),
            escalated=sum(is_llm_step(step) for step in episode.steps),
            cost=episode.total_cost,
            cached_cost=episode.billed_cost,
            latency=episode.sim_time_seconds,
            tokens_llm=tokens.llm_in + tokens.llm_out,
            tokens_slm=tokens.slm_in + tokens.slm_out,
            tokens_verifier=tokens.verifier_in,
            injected=any(p.category == INJECTION for step in episode.steps for p in step.perturbations),
            obeyed=obeyed_injection(episode.steps),
            categories=frozenset(p.category for step in episode.steps for p in step.perturbations),
            env_fault=episode.env_fault is not None,
            kind=episode.outcome,
        )


def is_llm_step(step: Step) -> bool:
    """True if the LLM chose this action: by the recorded decision, or by the source where there was no decision."""
    if step.decision is not None:
        return step.decision.escalated
    return step.action_source in ("llm_fallback", "teacher")


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """One method's outcomes under one condition. Each column has shape (tasks, seeds); NaN is a fault.
    A grid equals itself alone, so draws from it can be kept (`frontier`)."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    columns: dict[str, FloatArray]
    categories: dict[str, FloatArray]
    """For each perturbation category seen, 1 where it hit the episode."""
    num_faults: int = 0

    def __getitem__(self, column: str) -> FloatArray:
        return self.columns[column]

    def at_seed(self, seed: int) -> Grid:
        """The grid of one seed alone."""
        column = slice(index := self.seeds.index(seed), index + 1)
        columns = {name: values[:, column] for name, values in self.columns.items()}
        hit = {name: values[:, column] for name, values in self.categories.items()}
        return Grid(
            tasks=self.tasks,
            seeds=(seed,),
            columns=columns,
            categories=hit,
            num_faults=int(np.isnan(columns["success"]).sum()),
        )

    def of_tasks(self, tasks: Sequence[str]) -> Grid:
        """The grid of some of its tasks, in this order; itself where these are all of them."""
        if tuple(tasks) == self.tasks:
            return self
        rows = [self.tasks.index(task) for task in tasks]
        columns = {name: values[rows] for name, values in self.columns.items()}
        hit = {name: values[rows] for name, values in self.categories.items()}
        faults = int(np.isnan(columns["success"]).sum())
        return Grid(tasks=tuple(tasks), seeds=self.seeds, columns=columns, categories=hit, num_faults=faults)

    def where(self, mask: FloatArray) -> Grid:
        """The grid with every cell outside the mask taken out of all means."""
        columns = {name: np.where(mask == 1, values, np.nan) for name, values in self.columns.items()}
        return Grid(tasks=self.tasks, seeds=self.seeds, columns=columns, categories=self.categories)


def _is_of(kind: EpisodeOutcome, outcome: Outcome) -> float:
    return outcome.kind == kind


_COUNTED: dict[str, Callable[[Outcome], float]] = {
    "success": lambda o: o.success,
    "steps": lambda o: o.steps,
    "escalated": lambda o: o.escalated,
    "cost": lambda o: o.cost,
    "cached_cost": lambda o: o.cached_cost,
    "latency": lambda o: o.latency,
    "tokens_llm": lambda o: o.tokens_llm,
    "tokens_slm": lambda o: o.tokens_slm,
    "tokens_verifier": lambda o: o.tokens_verifier,
    "injected": lambda o: o.injected,
    "obeyed": lambda o: o.injected and o.obeyed,
    **{kind: partial(_is_of, kind) for kind in MODEL_FAILURES},
}


@dataclass(kw_only=True)
class _Draft:
    """A grid that is being filled: a number for each count of each episode, and no episode. `name` identifies it in
    errors."""

    name: str
    rows: Mapping[str, int]
    """Task -> row."""
    columns: Mapping[int, int]
    """Seed -> column."""
    counts: FloatArray = field(init=False)
    """(counted, tasks, seeds)."""
    played: BoolArray = field(init=False)
    fault: BoolArray = field(init=False)
    hit: dict[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.rows), len(self.columns)
        self.counts = np.zeros((len(_COUNTED), *shape))
        self.played, self.fault = np.zeros(shape, bool), np.zeros(shape, bool)

    def add(self, outcome: Outcome) -> None:
        """Raises InputError for a cell that is doubled, or not in the plan."""
        whose = f"task {outcome.task_id} with seed {outcome.seed}"
        if outcome.task_id not in self.rows or outcome.seed not in self.columns:
            raise InputError(f"{self.name}: {whose} is not in setup.json")
        cell = self.rows[outcome.task_id], self.columns[outcome.seed]
        if self.played[cell]:
            raise InputError(f"{self.name}: two episodes of {whose}; one is allowed")
        self.played[cell], self.fault[cell] = True, outcome.env_fault
        self.counts[:, *cell] = [count(outcome) for count in _COUNTED.values()]
        for category in outcome.categories:
            self.hit.setdefault(category, np.zeros(self.played.shape))[cell] = 1

    def grid(self) -> Grid:
        """The whole, NaN where the world failed. Raises InputError for a cell that is missing."""
        tasks, seeds = tuple(self.rows), tuple(self.columns)
        if missing := self.played.size - int(self.played.sum()):
            row, column = divmod(int(self.played.argmin()), len(seeds))
            raise InputError(
                f"{self.name}: no episode of task {tasks[row]} with seed {seeds[column]} "
                f"({missing} of {self.played.size} missing); all methods need the same tasks and "
                "seeds: run r2v evaluate again, it plays only what is missing"
            )
        self.counts[:, self.fault] = np.nan
        return Grid(
            tasks=tasks,
            seeds=seeds,
            columns=dict(zip(_COUNTED, self.counts, strict=True)),
            categories={category: np.where(self.fault, np.nan, self.hit[category]) for category in sorted(self.hit)},
            num_faults=int(self.fault.sum()),
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Every grid of an evaluation, by (condition, method, operating point), complete by construction."""

    setup: Setup
    grids: dict[tuple[str, str, str], Grid]

    def has(self, condition: str, *methods: str) -> bool:
        """True if all these methods are in the main table of the condition."""
        return all((condition, method, MAIN) in self.grids for method in methods)


def measure(episodes: Iterable[Episode], setup: Setup) -> Measured:
    """Lay every episode out on the setup's grid.

    Raises InputError for a missing or doubled cell and for an episode that the setup does not plan.
    """
    columns = {seed: column for column, seed in enumerate(setup.seeds)}
    drafts = {}
    for key in setup.cells():
        rows = {task: row for row, task in enumerate(setup.tasks_of(*key))}
        drafts[key] = _Draft(name="/".join(key), rows=rows, columns=columns)
    for episode in episodes:
        outcome = Outcome.of(episode)
        key = (outcome.condition, outcome.method, outcome.point)
        if key not in drafts:
            raise InputError(f"episode {episode.episode_id}: {'/'.join(key)} is not in setup.json")
        drafts[key].add(outcome)
    return Measured(setup=setup, grids={key: draft.grid() for key, draft in drafts.items()})
