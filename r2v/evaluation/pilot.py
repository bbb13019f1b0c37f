"""Pilot figures: bounds of routing between two models, from tasks that each of them has played alone.

    figures = PilotFigures.of(small, large, by_step)       # plays by task, and those of the oracle that looks ahead
    print(figures.verdict().text)

No router can do better than its bounds: by task, the cheaper of the models that solve the task plays it; by step, the
oracle of `r2v.rollout.counterfactual.play_oracle`, which looks one call ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from r2v.evaluation.measures.statistics import PairedDifference, mcnemar, paired_difference, wilson

Advice = Literal["route", "small", "large", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Play:
    """One task played once: solved or not, and USD as billed."""

    solved: bool
    usd: float


@dataclass(frozen=True, kw_only=True)
class WayOfPlaying:
    """Success and dollars of one way of playing over the tasks."""

    success: float
    interval: tuple[float, float]
    """Wilson's, of 95 %; of a bound (0, 1)."""
    usd: float
    """USD an episode."""

    @classmethod
    def of(cls, plays: Mapping[str, Play]) -> WayOfPlaying:
        """Over these tasks."""
        solved = sum(play.solved for play in plays.values())
        interval = wilson(solved, len(plays))
        return cls(
            success=solved / len(plays),
            interval=(round(interval[0], 4), round(interval[1], 4)),
            usd=fmean(play.usd for play in plays.values()),
        )


@dataclass(frozen=True, kw_only=True)
class PilotVerdict:
    """The recommendation and its reason."""

    advice: Advice
    text: str


@dataclass(frozen=True, kw_only=True)
class PilotFigures:
    """Two models on the same tasks."""

    num_tasks: int
    small: WayOfPlaying
    large: WayOfPlaying
    only_small: tuple[str, ...]
    """Tasks that the small model alone solves."""
    only_large: tuple[str, ...]
    by_task: WayOfPlaying
    """The bound of routers that choose a model for each task."""
    by_step: WayOfPlaying | None
    """The mark of routers that choose at each step; None where branches are not played."""
    difference: PairedDifference
    """Success of the large model less that of the small one."""
    same_model: bool = False
    """Both are one model, asked in one way."""

    @classmethod
    def of(
        cls,
        small: Mapping[str, Play],
        large: Mapping[str, Play],
        by_step: Mapping[str, Play] | None = None,
        *,
        same_model: bool = False,
    ) -> PilotFigures:
        """Of plays by task; those that not all have are left out. Raises ValueError where none is left."""
        tasks = [task for task in small if task in large and (by_step is None or task in by_step)]
        if not tasks:
            raise ValueError("no task was played by both models")
        pairs = {task: (small[task], large[task]) for task in tasks}
        return cls(
            num_tasks=len(tasks),
            small=WayOfPlaying.of({task: small[task] for task in tasks}),
            large=WayOfPlaying.of({task: large[task] for task in tasks}),
            only_small=tuple(task for task, (a, b) in pairs.items() if a.solved and not b.solved),
            only_large=tuple(task for task, (a, b) in pairs.items() if b.solved and not a.solved),
            by_task=WayOfPlaying.of(
                {task: min(pair, key=lambda play: (not play.solved, play.usd)) for task, pair in pairs.items()}
            ),
            by_step=None if by_step is None else WayOfPlaying.of({task: by_step[task] for task in tasks}),
            difference=paired_difference(
                [float(large[task].solved) for task in tasks], [float(small[task].solved) for task in tasks]
            ),
            same_model=same_model,
        )

    @property
    def best(self) -> WayOfPlaying:
        """The better of the bounds: more success, then fewer dollars."""
        bounds = [self.by_task] + ([self.by_step] if self.by_step is not None else [])
        return max(bounds, key=lambda bound: (bound.success, -bound.usd))

    def detectable(self, num_tasks: int) -> float | None:
        """The least difference in success that so many tasks show with 80 % power, if they vary as these do; None
        where no task differs."""
        detectable = self.difference.detectable
        return None if detectable is None else detectable * math.sqrt(self.num_tasks / num_tasks)

    def verdict(self) -> PilotVerdict:
        """The recommendation."""
        small, large, best = self.small, self.large, self.best
        if self.same_model:
            text = "no router can gain here: both are the same model, asked in the same way"
            return PilotVerdict(advice="small", text=text)
        if not self.only_large and best.success <= small.success:
            cheaper: Advice = "small" if small.usd <= large.usd or self.only_small else "large"
            text = (
                "no router can gain here: the large model solves no task that the small one fails; play with the "
                f"{cheaper} model alone"
            )
            return PilotVerdict(advice=cheaper, text=text)
        if large.usd <= small.usd and not self.only_small:
            text = "no router can gain here: the large model solves all that the small one does, for no more dollars"
            return PilotVerdict(advice="large", text=text)
        saved = 1 - best.usd / large.usd if large.usd else 0.0
        if best.success <= large.success and saved < _LEAST_SAVED:
            text = (
                f"routing cannot pay much: at best it keeps the large model's success for {1 - saved:.0%} of its "
                "dollars; play with the large model alone"
            )
            return PilotVerdict(advice="large", text=text)
        p_value = mcnemar(len(self.only_large), len(self.only_small))[1]
        gain = (
            f"at best a router solves {best.success:.0%} of the tasks for {best.usd / large.usd:.0%} of the large "
            f"model's dollars (small alone {small.success:.0%}, large alone {large.success:.0%})"
        )
        if p_value > _SHOWN:
            text = (
                f"unclear: {gain}, but {self.num_tasks} tasks do not show that the two models differ (p = "
                f"{p_value:.2f}); play more (--num-tasks)"
            )
            return PilotVerdict(advice="unclear", text=text)
        return PilotVerdict(advice="route", text=f"routing can pay: {gain}")


_LEAST_SAVED = 0.1
"""Share of the large model's dollars below which savings do not justify a router."""
_SHOWN = 0.05
