"""The benchmark of imported trajectories: it has no world, so nothing is ever played in it.

    r2v import chat.jsonl
    r2v perturb --overrides env.benchmark=logs
    r2v train_policy --stage bc --overrides env.benchmark=logs

Whoever has records and no environment can distil a policy from them, and fit a router of imputed labels
(`router.label=imputed`). What needs a world (a verifier's executed labels, candidates, a router of executed gains, an
evaluation) says that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.envs.base import Capabilities, Environment, Task
from r2v.errors import UsageError


class Logs:
    """No tasks and no world. A failed call may have changed something, so no retry is put into a record."""

    name = "logs"
    version = "1"
    capabilities = Capabilities(deterministic=False, idempotent_errors=False)
    more_tasks = (
        "it is of records, which have no world: begin by `r2v run --from perturb` with the newest imported run, or "
        "name one by data.runs=[ID]; router.label=imputed makes a router of it; or name another benchmark"
    )

    def tasks(self) -> Sequence[Task]:
        """None: what was imported is not to be played again."""
        return ()

    def make(self) -> Environment:
        """Raises UsageError: there is nothing to make."""
        raise UsageError("env.benchmark=logs: imported trajectories have no world; name a benchmark that has one")
