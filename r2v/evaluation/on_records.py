"""Routing on recorded steps: its cost, and the steps at which the small model would have acted otherwise.

    routed = routed_steps(rows, score, budget=0.2, placed=placed)
    found = OnRecords.of(routed, budget=0.2)
    found.verdict()                  # "on your sessions: -41 % dollars [31, 50]; ..."

Nothing is executed. A session in which each step that the small model keeps is the LLM's own would have gone as it was
recorded; of any other nothing is known, so the share of these bounds the loss of success. Thresholds for one half of
the tasks are placed on the other half, so that no task is counted at a threshold that it has placed itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from r2v.evaluation.measures.statistics import FloatArray, Interval, bootstrap_draws, percentile_interval
from r2v.randomness import uniform

if TYPE_CHECKING:
    from r2v.router.labels import FeatureRow

BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
"""Shares of LLM steps at which thresholds are placed in addition to the configured one."""


@dataclass(frozen=True, kw_only=True)
class RoutedStep:
    """A recorded step as the router decides it; USD of the small model's proposal and of the LLM's turn."""

    task_id: str
    session: str
    kept: bool
    """The small model acts."""
    agrees: bool
    """It would act as the LLM did."""
    usd_small: float
    usd_llm: float


def routed_steps(
    rows: Sequence[FeatureRow], score: Callable[[FeatureRow], float], place: Callable[[Sequence[FeatureRow]], float]
) -> list[RoutedStep]:
    """Return the rows as routed steps. place: puts a threshold on rows of one half of the tasks, for the other. Empty
    where all rows are of one task."""
    tasks = sorted({row.task_id for row in rows}, key=lambda task: (uniform("halves of records", task), task))
    halves = set(tasks[::2]), set(tasks[1::2])
    if not all(halves):
        return []
    taus = [place([row for row in rows if row.task_id not in half]) for half in halves]
    return [
        RoutedStep(
            task_id=row.task_id,
            session=row.episode_id,
            kept=score(row) < taus[row.task_id in halves[1]],
            agrees=not row.disagrees,
            usd_small=row.cost_slm,
            usd_llm=row.cost_llm,
        )
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class OnRecords:
    """Routing at one budget on recorded steps. Shares in [0, 1], intervals of 95 % over tasks; None: undefined."""

    budget: float
    steps: int
    sessions: int
    tasks: int
    llm_call_rate: float
    saved: float | None
    """Share of the LLM's dollars that is saved, proposals paid; None where the records tell no dollars."""
    saved_interval: Interval | None
    most_saved: float | None
    """The same of a router that knows where the models agree, and asks the small model there alone."""
    agreement: float | None
    """At the steps that the small model keeps."""
    agreement_interval: Interval | None
    by_chance: float
    """Agreement at all steps, as of steps that are kept at random."""
    lead_interval: Interval | None
    """Of the agreement at kept steps less that by chance."""
    unchanged: int
    """Sessions of which every kept step is the LLM's own."""

    @classmethod
    def of(cls, steps: Sequence[RoutedStep], budget: float) -> OnRecords:
        """Return the figures of these steps, at least one."""
        kept_steps = [step for step in steps if step.kept]
        llm = sum(step.usd_llm for step in steps)
        routed = _sums(steps, lambda step: step.usd_small + (0.0 if step.kept else step.usd_llm))
        saved = 1 - bootstrap_draws(routed, _sums(steps, lambda step: step.usd_llm))
        agreed, num_kept = _sums(steps, lambda step: step.kept and step.agrees), _sums(steps, lambda step: step.kept)
        agreement = bootstrap_draws(agreed, num_kept)
        chance = bootstrap_draws(_sums(steps, lambda step: step.agrees), _sums(steps, lambda step: True))
        known_usd = sum(step.usd_llm - step.usd_small for step in steps if step.agrees)
        changed = {step.session for step in kept_steps if not step.agrees}
        sessions = {step.session for step in steps}
        return cls(
            budget=budget,
            steps=len(steps),
            sessions=len(sessions),
            tasks=len({step.task_id for step in steps}),
            llm_call_rate=1 - len(kept_steps) / len(steps),
            saved=1 - float(routed.sum()) / llm if llm else None,
            saved_interval=percentile_interval(saved) if llm else None,
            most_saved=max(0.0, known_usd) / llm if llm else None,
            agreement=sum(step.agrees for step in kept_steps) / len(kept_steps) if kept_steps else None,
            agreement_interval=percentile_interval(agreement),
            by_chance=sum(step.agrees for step in steps) / len(steps),
            lead_interval=percentile_interval(agreement - chance),
            unchanged=len(sessions - changed),
        )

    @property
    def gains(self) -> bool:
        """True if the records show that the router keeps steps better than chance and saves dollars."""
        saves = self.saved is None or (self.saved_interval is not None and self.saved_interval[0] > 0)
        return saves and self.lead_interval is not None and self.lead_interval[0] > 0

    def verdict(self) -> str:
        """Return the result in a sentence."""
        n = f"n = {self.sessions} sessions, {self.steps} steps"
        if self.most_saved == 0:
            return (
                f"no router can gain here: where both models act alike, the small one's turns cost no less than the "
                f"LLM's ({n})"
            )
        if not self.gains:
            agreement = "none" if self.agreement is None else f"{self.agreement:.0%}"
            cost = "" if self.saved is None else f"dollars {-self.saved:+.0%}{_shown(self.saved_interval, -1)}; "
            return (
                f"no router is shown to gain here: {cost}at the steps that it keeps the models act alike in {agreement}"
                f", at steps kept by chance in {self.by_chance:.0%} ({n})"
            )
        saved = (
            f"{self.llm_call_rate - 1:.0%} LLM steps (the records tell no dollars)"
            if self.saved is None
            else f"{-self.saved:+.0%} dollars{_shown(self.saved_interval, -1)}"
        )
        lost = 1 - self.unchanged / self.sessions
        return (
            f"on your sessions: {saved}; {self.unchanged} of {self.sessions} sessions stay as they were, so at most "
            f"{lost:.0%} could end otherwise (none was executed); at the steps kept the small model acts as the LLM "
            f"did in {self.agreement:.0%}{_shown(self.agreement_interval)}, at steps kept by chance in "
            f"{self.by_chance:.0%} ({n})"
        )

    def row(self) -> tuple[str, ...]:
        """It as a row of the page's table (HEADS)."""
        return (
            f"{self.budget:.0%}",
            f"{self.llm_call_rate:.0%}",
            "unknown" if self.saved is None else f"{-self.saved:+.0%}{_shown(self.saved_interval, -1)}",
            "" if self.agreement is None else f"{self.agreement:.0%}{_shown(self.agreement_interval)}",
            f"{self.by_chance:.0%}",
            f"{self.unchanged} of {self.sessions}",
        )


def verdict_of(routed: Sequence[OnRecords], budget: float) -> str:
    """Return the verdict at a budget; where nothing is shown to be gained at it, also that of the first other budget
    at which something is."""
    own = next((figures for figures in routed if figures.budget == budget), None)
    if own is None:
        return "one recorded task cannot tell: record more"
    other = None if own.gains else next((figures for figures in routed if figures.gains), None)
    return own.verdict() if other is None else f"{own.verdict()}; at router.budget={other.budget:g}: {other.verdict()}"


HEADS = ("budget", "LLM steps", "dollars", "acts alike, kept steps", "by chance", "sessions unchanged")


def _sums(steps: Iterable[RoutedStep], value: Callable[[RoutedStep], float]) -> FloatArray:
    """Return the sum of a value over the steps of each task, tasks in order."""
    sums: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        sums[step.task_id] += value(step)
    return np.array([sums[task] for task in sorted(sums)])


def _shown(interval: Interval | None, sign: int = 1) -> str:
    if interval is None:
        return ""
    low, high = sorted(sign * value for value in interval)
    return f" [{low:.0%}, {high:.0%}]"
