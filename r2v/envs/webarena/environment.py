"""The environment of WebArena in R2V's process: a worker's world, a judge for fuzzy answers, and clean sites.

Sites are put back before the next episode that follows one which changed them, by whatever process: that they were
changed is written down before the change, and taken back after the reset. Without a server that resets them
(WA_FULL_RESET) they stay as they are.
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
"""A reset of all sites takes 200 to 500 s; its client gives up after 600."""


@dataclass
class SiteState:
    """Whether a site set was changed since it was last put back: a file that is there, or not."""

    changed: Path
    lock: threading.Lock = field(default_factory=threading.Lock)


class WebArenaEnvironment(WorkerEnvironment):
    """One task at a time. `sites` is None where nobody puts the sites back; without a `judge`, a question to one is
    refused."""

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
        """Put the sites back if they were changed, log in, and open the first page."""
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
        """What the world answers, when every question of its evaluator has a reply."""
        answer = super()._call(method, arguments, limit)
        while questions := answer.get("asks"):
            if self._judge is None:
                raise UsageError("env.options.judge: this answer is judged by a model, and none is named")
            answer = super()._call("grade", {"replies": self._judge.replies(questions)}, limit)
        return answer
