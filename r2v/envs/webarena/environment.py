"""WebArena's environment in R2V's process: a worker's world, a judge for fuzzy answers, and reset sites.

Sites are reset before the episode that follows one which changed them, in any process: the change is recorded in a
file before it happens, and the file is removed after the reset. Without a reset server (WA_FULL_RESET) the sites stay
changed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.envs.base import Info, Task
from r2v.envs.webarena.judging import AnswerJudge
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import WorkerFault
from r2v.errors import UsageError
from r2v.storage.files import write_text
from r2v.wire.message import ToolSpec

RESET_SECONDS = 900.0
"""Limit for a reset of all sites, which takes 200 to 500 s; its client gives up after 600."""


@dataclass
class SiteState:
    """Record of changes to a site set: the file `changed` exists if an episode changed it since its last reset."""

    changed: Path
    lock: threading.Lock = field(default_factory=threading.Lock)


class WebArenaEnvironment(WorkerEnvironment):
    """A WebArena world. `sites` is None without resets; without a `judge`, a task that needs one raises UsageError."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        limits: WorldLimits,
        tools: tuple[ToolSpec, ...],
        judge: AnswerJudge | None,
        sites: SiteState | None,
    ) -> None:
        super().__init__(pool, limits=limits, tools=tools)
        self._judge, self._sites = judge, sites

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Reset the sites if they were changed, log in, and open the first page."""
        if self._sites is not None:
            with self._sites.lock:
                if self._sites.changed.exists():
                    try:
                        super()._call("restore_sites", {}, RESET_SECONDS)
                    except WorkerFault as fault:
                        return "", Info(env_fault=str(fault))
                    self._sites.changed.unlink()
                if task.mutates:
                    write_text(self._sites.changed, f"{task.task_id}\n")
        return super().reset(seed=seed, task=task)

    def _call(self, method: str, arguments: Mapping[str, Any], limit: float) -> Mapping[str, Any]:
        """Return the world's answer after replying to all questions of its evaluator."""
        answer = super()._call(method, arguments, limit)
        while questions := answer.get("asks"):
            if self._judge is None:
                raise UsageError("env.options.judge: this answer is judged by a model, and none is named")
            answer = super()._call("grade", {"replies": self._judge.replies(questions)}, limit)
        return answer
