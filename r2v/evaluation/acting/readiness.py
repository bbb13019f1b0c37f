"""Readiness: a cloned policy measured before the stages after it are paid.

    found = readiness_of(settings, work, report)          # of the training
    if found.hopeless:
        print(found)       # the small policy solved 0 of 20 calibration tasks: ...

It plays twenty calibration tasks, where playing them is quick, and reads how well the policy repeats its training data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.envs.base import load_benchmark
from r2v.errors import EmptyResult, InputError, UsageError
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.log import logger
from r2v.storage.artifact import Work

_LEARNT = 0.5
"""Nats a token below which training steps are as good as known."""
PLAYED = 20
"""Calibration tasks."""
LEAST_PARSED, LEAST_EXACT = 0.5, 0.3
"""Shares of training steps: replies that are actions, and those that are the teacher's to the letter. Below one of
them, a policy that solves nothing is not expected to."""


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """A cloned policy on its own training steps and on calibration tasks."""

    parsed: float
    """Share of training steps at which its reply is an action."""
    exact: float
    """Share of them at which it is the teacher's action, to the letter."""
    loss: float
    """Of the last update that was logged, in nats a token."""
    falling: bool
    """True if it fell by a tenth in the last third of the training."""
    played: int = 0
    """Calibration tasks; 0: none was played, for playing takes long there."""
    solved: int = 0

    @property
    def cause(self) -> str | None:
        """The likely cause, and the setting that helps; None where it has learnt its training steps."""
        if self.parsed >= LEAST_PARSED and self.exact >= LEAST_EXACT:
            return None
        what = (
            f"{1 - self.parsed:.0%} of its replies to training steps are no action"
            if self.parsed < LEAST_PARSED
            else f"it repeats {self.exact:.0%} of the actions that it was trained on"
        )
        loss = f"at a loss of {self.loss:.2f}"
        if self.loss < _LEARNT:
            return (
                f"{what}, {loss}: it has learnt them in another form than it is asked in; see policy.tools, "
                "policy.max_seq_len and inference.max_new_tokens"
            )
        if self.falling:
            return (
                f"{what}, {loss} that still falls: train longer (training.bc.num_epochs); if that does not help, the "
                "demonstrations may contradict each other"
            )
        return (
            f"{what}, {loss} that no longer falls: raise training.bc.lr, or see whether the demonstrations contradict "
            "each other"
        )

    @property
    def hopeless(self) -> bool:
        """True if it solved no calibration task and does not repeat its training data either."""
        return self.played > 0 and self.solved == 0 and self.cause is not None

    def summary(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)

    def __str__(self) -> str:
        tasks = f"solved {self.solved} of {self.played} calibration tasks" if self.played else "was not played"
        return f"the small policy {tasks}" + (f": {self.cause}" if self.cause else "")


def readiness_of(cfg: ActingSettings, work: Work, report: Mapping[str, Any]) -> Readiness:
    """Measure the cloned policy that a training has left in the attempt's folder. report: the training's figures
    (bc_report.json). Where worlds cannot be copied or are slow, or the benchmark is not on this machine, nothing
    is played."""
    match, losses = report["train_match"], [entry["loss"] for entry in report["losses"]]
    trained = Readiness(
        parsed=match["parsed"],
        exact=match["exact"],
        loss=losses[-1],
        falling=losses[-1] < 0.9 * losses[2 * (len(losses) - 1) // 3],
    )
    try:
        able = load_benchmark(cfg.env.benchmark, cfg.env.options).capabilities
        if not able.snapshot or able.waits or able.needs_network:
            return trained
        return _played(cfg, work, work.folder / "final", trained)
    except (UsageError, InputError, EmptyResult) as error:  # no benchmark here, or no task: nothing to play
        logger.info("  cloned policy not played: reason=%s", error)
        return trained


def _played(cfg: ActingSettings, work: Work, policy: Path, trained: Readiness) -> Readiness:
    from r2v.config.methods import CLONE, WEAK
    from r2v.evaluation.acting.calibration import played_cell
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.evaluation.calibration import successes
    from r2v.rollout.session import episode_specs

    runner = MethodRunner.of(cfg, work, policy=policy, variants={CLONE: policy}, logprobs=False)
    specs = episode_specs(runner.world.benchmark, "calibration", cfg.seeds[:1], cfg.tasks, method=WEAK, limit=PLAYED)
    cell = played_cell(runner, CLONE, specs)
    # a play of its own: a stage that finds some played is not timed
    cell = replace(cell, identity={**cell.identity, "play": "readiness"})
    runner.player.play([cell], "readiness")
    solved = successes(play for (play,) in runner.player.records(cell))
    return replace(trained, played=len(solved), solved=sum(share > 0 for share in solved.values()))
