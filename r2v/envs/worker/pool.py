"""Pool of workers, which keeps started interpreters and their browsers for the next episode.

A worker is kept only if its world closed the episode within a limit, and at most for a number of episodes. All workers
end with the pool, and with this process however it ends.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

from r2v.envs.worker.process import Worker, WorkerFault, WorldProcess

_EPISODES = 200
"""Episodes after which a worker is ended, to bound a browser's memory leaks."""


@dataclass(eq=False)
class WorkerPool:
    """Idle workers of one benchmark."""

    spec: WorldProcess
    warm: int = 8
    """Largest number of idle workers."""
    start_seconds: float = 120.0
    close_seconds: float = 20.0
    _idle: list[Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, _end, self._idle)

    def take(self) -> Worker:
        """Return an idle or a new worker for exclusive use. Raises WorkerFault if none can be started."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return Worker(self.spec, seconds=self.start_seconds)
            if worker.alive:
                return worker
            worker.kill()

    def give(self, worker: Worker) -> None:
        """Close the worker's episode, and keep the worker or end it."""
        worker.played += 1
        try:
            worker.call("close", {}, seconds=self.close_seconds)
        except WorkerFault:
            return  # the fault has killed the worker
        with self._lock:
            reusable = len(self._idle) < self.warm and worker.played < _EPISODES
            if reusable:
                self._idle.append(worker)
        if not reusable:
            worker.kill()

    def close(self) -> None:
        """End all idle workers. Workers in use may still be given back."""
        with self._lock:
            idle, self._idle[:] = [*self._idle], []
        _end(idle)


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
