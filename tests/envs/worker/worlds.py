"""Environments that run in a worker: a well-behaved one, and one step for each way to fail. They import nothing of
R2V."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any


def answer(observation: str, **more: Any) -> dict[str, Any]:
    """Return the answer of a step that does not end the episode."""
    return {"observation": observation, "reward": 0.0, "terminated": False, "truncated": False, **more}


class Counter:
    """Counts its steps; `stop` ends with success. The other actions cause the troubles below."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def reset(self, seed: int, task: dict[str, Any]) -> dict[str, Any]:
        if task["task_id"] in ("hang", "die"):
            getattr(self, task["task_id"])()
        self.count = self.start + seed
        return {"observation": f"{task['goal']}: {self.count}"}

    def step(self, action: str) -> dict[str, Any]:
        if action == "stop":
            return answer("bye", reward=1.0, terminated=True, success=True)
        if trouble := getattr(self, action, None):
            return trouble() or answer(action)
        self.count += 1
        return answer(str(self.count))

    def close(self) -> None:
        """Close nothing: no resource is held."""

    def hang(self) -> None:
        while True:
            time.sleep(60)

    def die(self) -> None:
        print("no memory left for the page", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        os._exit(3)

    def raising(self) -> None:
        raise KeyError("cart")

    def print_much(self) -> None:
        for _ in range(200):
            sys.stderr.write("x" * 100_000 + "\n")

    def answer_much(self) -> dict[str, Any]:
        return answer("x" * (17 * 2**20))

    def no_number(self) -> dict[str, Any]:
        return answer("odd", reward=float("nan"))

    def half_an_answer(self) -> dict[str, Any]:
        return {"observation": "no reward"}

    def detach(self) -> dict[str, Any]:
        """Start a child in a session of its own, as a browser does."""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
        return answer(str(child.pid))

    def look(self) -> dict[str, Any]:
        return answer(" ".join(sorted(os.environ)))

    def where(self) -> dict[str, Any]:
        return answer(f"{os.environ['HOME']} {os.getpid()}")


class Broken:
    """An environment whose constructor raises."""

    def __init__(self) -> None:
        raise RuntimeError("no display")
