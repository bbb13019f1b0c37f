"""Acceptance: a trained policy against the cloned one that it came from, by episodes of calibration tasks.

    verdict = compare_policies(settings, work, cloned=..., trained=..., limit=None, rule="interval")
    verdict.accepted

Both play the same tasks with the same keyed luck. The caller discards a policy that no executed success supports: a
lower loss is no reason to act with it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from r2v.config.methods import CLONE, WEAK
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.evaluation.acting.calibration import played_cell
from r2v.evaluation.acting.methods import MethodRunner
from r2v.evaluation.calibration import successes
from r2v.evaluation.measures.statistics import paired_difference
from r2v.rollout.session import episode_specs
from r2v.storage.artifact import Work

Rule = Literal["interval", "higher"]
"""The figure that must be above zero: the interval of the difference, or the difference alone."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Success of both policies over tasks, their paired difference with its 95 % interval, and the decision."""

    accepted: bool
    rule: Rule
    cloned: float
    trained: float
    difference: float
    interval: tuple[float, float]
    detectable: float | None
    """The smallest true difference that so many tasks show with 80 % power; None where all tasks are alike."""
    n_tasks: int

    def summary(self) -> dict[str, Any]:
        """For manifest and report."""
        plain = asdict(self) | {"interval": list(self.interval)}
        return {name: _rounded(value) for name, value in plain.items()}

    def __str__(self) -> str:
        low, high = self.interval
        seen = "all tasks alike" if self.detectable is None else f"minimum detectable effect {self.detectable:.3f}"
        return (
            f"success {self.trained:.3f} after training, {self.cloned:.3f} before, {self.n_tasks} calibration tasks: "
            f"difference {self.difference:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}], {seen}"
        )


def verdict_of(cloned: dict[str, float], trained: dict[str, float], rule: Rule) -> Verdict:
    """Of each task's mean success under both; tasks that the world's faults left to one of them are not counted."""
    tasks = sorted(cloned.keys() & trained.keys())
    before, after = np.array([cloned[task] for task in tasks]), np.array([trained[task] for task in tasks])
    difference = paired_difference(after, before)
    decisive = difference.interval[0] if rule == "interval" else difference.difference
    return Verdict(
        accepted=decisive > 0,
        rule=rule,
        cloned=float(before.mean()),
        trained=float(after.mean()),
        difference=difference.difference,
        interval=difference.interval,
        detectable=difference.detectable,
        n_tasks=len(tasks),
    )


def compare_policies(
    cfg: ActingSettings, work: Work, *, cloned: Path, trained: Path, limit: int | None, rule: Rule
) -> Verdict:
    """Play the first `limit` calibration tasks (None: all) with both policies. Raises EmptyResult where there is
    none."""
    runner = MethodRunner.of(cfg, work, policy=trained, variants={CLONE: cloned}, logprobs=False)
    specs = episode_specs(runner.world.benchmark, "calibration", cfg.seeds, cfg.tasks, method=WEAK, limit=limit)
    cells = {method: played_cell(runner, method, specs) for method in (CLONE, WEAK)}
    runner.player.play(list(cells.values()), "accept a trained policy")
    of = {method: successes(play for (play,) in runner.player.records(cell)) for method, cell in cells.items()}
    return verdict_of(of[CLONE], of[WEAK], rule)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value
