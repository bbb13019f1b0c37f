"""A separate checkout to type the seed's lines in: scripts and configurations of this repository, nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.config import CostConfig, InferenceConfig, PerturbationsConfig, RolloutConfig, TaskSelection, TeacherConfig
from r2v.data.episode import ActionSource, Episode
from r2v.envs.desk import Desk
from r2v.llm.types import Reply
from r2v.log import logger
from r2v.rollout.actors import Actor, GreedyActor, Routed, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.model_factory import engine, priced_teacher
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from tests import warm

REPOSITORY = Path(__file__).parents[2]
SOURCES: dict[str, ActionSource] = {"teacher": "teacher", "slm_only": "slm", "llm_only": "llm_fallback", "r2v": "slm"}


def checkout(root: Path) -> Path:
    """Make `root` look like a fresh clone; `python` is the interpreter of these tests."""
    for name in ("configs", "scripts"):
        (root / name).symlink_to(REPOSITORY / name)
    (root / "bin").mkdir()
    python = root / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(warm.python())} "$@"\n')
    python.chmod(0o755)
    return root


def typed(root: Path, command: str) -> dict[str, Any]:
    """Return the arguments with which `subprocess` types a command in the checkout."""
    places = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return {"args": ["bash", "-c", command], "cwd": root, "env": {**os.environ, **places}}


def sh(root: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Type a command in the checkout and wait for it."""
    return subprocess.run(**typed(root, command), capture_output=True, text=True, check=False)


@contextmanager
def standing_in(root: Path) -> Iterator[None]:
    """Let this very process work in the checkout; restore the logger that a command line sets up."""
    before = (list(logger.handlers), logger.propagate, logger.level)
    with chdir(root):
        yield
    logger.handlers[:], logger.propagate, level = before
    logger.setLevel(level)


def written(root: Path) -> set[str]:
    """Return everything below the checkout that a fresh clone does not have."""
    fresh = {"configs", "scripts", "bin"}
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.relative_to(root).parts[0] not in fresh}


def play(
    split: str,
    count: int,
    *,
    condition: str = "clean",
    method: str = "teacher",
    slips: float = 0.0,
    helped_from: int | None = None,
) -> list[Episode]:
    """Return episodes that the desk's expert really played. `slips` makes it a worse player, who hands over to a better
    one at step `helped_from`."""
    waves = engine(RolloutConfig(workers=1), Desk(num_tasks=0, num_heldout=0))
    player, helper = (
        priced_teacher(TeacherConfig(), CostConfig(), Desk(num_tasks=60, num_heldout=0, slips=share), waves)
        for share in (slips, 0.0)
    )
    actor: Actor = GreedyActor(player, SOURCES[method])
    if helped_from is not None:
        actor = Routed(player, helper, _From(helped_from), 0.5, 30)
    world = RolloutWorld(Desk(num_tasks=60, num_heldout=0), PerturbationsConfig(), InferenceConfig())
    hazards = TaskSelection(condition=condition, perturbation_seeds=[901], split_seed=0, split_by="task_id")
    return play_many(
        waves, world, episode_specs(world.benchmark, split, [1], hazards, method=method, limit=count), actor
    )


@dataclass(frozen=True)
class _From:
    """A router that knows the step only."""

    step: int

    async def __call__(self, view: StepView, proposal: Reply) -> tuple[float, StepBill]:
        return float(view.step >= self.step), StepBill()
