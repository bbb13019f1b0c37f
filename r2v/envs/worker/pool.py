"""Workers kept warm between episodes: a started interpreter, and a browser that it holds, serve the next one.

A worker is kept only when its world said within a limit that it has let go of the episode, and ends after a number of
episodes. All end with the pool, and with this process however it ends.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

from r2v.envs.worker.process import Worker, WorkerFault, WorldProcess

_EPISODES = 200
"""After so many a worker is not kept: what a browser leaks stays bounded."""


@dataclass(eq=False)
class WorkerPool:
    """The workers of one benchmark that no episode is played in."""

    spec: WorldProcess
    warm: int = 8
    """At most so many are kept."""
    start_seconds: float = 120.0
    close_seconds: float = 20.0
    _idle: list[Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, _end, self._idle)

    def take(self) -> Worker:
        """A worker of one's own. Raises WorkerFault where none can be started."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return Worker(self.spec, seconds=self.start_seconds)
            if worker.alive:
                return worker
            worker.kill()

    def give(self, worker: Worker) -> None:
        """Let the world go of its episode, and keep the worker or end it."""
        worker.played += 1
        try:
            worker.call("close", {}, seconds=self.close_seconds)
        except WorkerFault:
            return  # it is gone
        with self._lock:
            kept = len(self._idle) < self.warm and worker.played < _EPISODES
            if kept:
                self._idle.append(worker)
        if not kept:
            worker.kill()

    def close(self) -> None:
        """End all that are idle. Others may still be given back."""
        with self._lock:
            idle, self._idle[:] = [*self._idle], []
        _end(idle)


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
