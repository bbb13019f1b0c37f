"""Benchmark of imported trajectories, which has no world and plays no episodes.

    r2v import chat.jsonl
    r2v perturb --overrides env.benchmark=logs
    r2v train_policy --stage bc --overrides env.benchmark=logs

Records without an environment suffice to distil a policy and to fit a router with imputed labels
(`router.label=imputed`). Stages that need a world (a verifier's executed labels, candidates, a router of executed
gains, an evaluation) refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.envs.base import Capabilities, Environment, Task
from r2v.errors import UsageError


class Logs:
    """Benchmark without tasks or world. A failed call may have changed the state, so records get no inserted retry."""

    name = "logs"
    version = "1"
    capabilities = Capabilities(deterministic=False, idempotent_errors=False)
    more_tasks = (
        "it is of records, which have no world: begin by `r2v run --from perturb` with the newest imported run, or "
        "name one by data.runs=[ID]; router.label=imputed makes a router of it; or name another benchmark"
    )

    def tasks(self) -> Sequence[Task]:
        """Return no tasks: imported trajectories cannot be played again."""
        return ()

    def make(self) -> Environment:
        """Raise UsageError: imported trajectories have no world."""
        raise UsageError("env.benchmark=logs: imported trajectories have no world; name a benchmark that has one")
