"""A benchmark without snapshots that counts its live environments: a corridor that a single wrong action ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from r2v.envs.base import Capabilities, Info, Task
from r2v.llm.types import Request
from r2v.wire.message import ToolSpec

WALK = ToolSpec(
    name="walk",
    description="Go on to the next door.",
    parameters={"type": "object", "properties": {"door": {"type": "integer"}}, "required": ["door"]},
)


def walk(door: int) -> str:
    return json.dumps({"tool": "walk", "arguments": {"door": door}}, separators=(",", ":"))


def straight_on(request: Request) -> str:
    return walk(int(request.messages[-1].content.split()[-1]))


def elsewhere(request: Request) -> str:
    return walk(-1)


@dataclass
class Census:
    """Counts of environments: created, alive now, and most alive at once."""

    made: int = 0
    live: int = 0
    peak: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def born(self) -> None:
        with self.lock:
            self.made, self.live = self.made + 1, self.live + 1
            self.peak = max(self.peak, self.live)

    def died(self) -> None:
        with self.lock:
            self.live -= 1


@dataclass(frozen=True)
class Counted:
    """A benchmark of `length` doors a task; environments are counted from `make` to `close`."""

    num_tasks: int = 64
    length: int = 30
    census: Census = field(default_factory=Census)
    name: str = "counted"
    version: str = "1"
    capabilities: Capabilities = Capabilities()

    def tasks(self) -> Sequence[Task]:
        return [Task(task_id=f"t-{number:02}", goal=f"leave corridor {number}") for number in range(self.num_tasks)]

    def make(self) -> CountedEnvironment:
        self.census.born()
        return CountedEnvironment(self)


class CountedEnvironment:
    def __init__(self, benchmark: Counted) -> None:
        self._benchmark, self._open = benchmark, True

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        self._door = 0
        return "door 0", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        assert self._open, "a closed world was used"
        if action != walk(self._door):
            return "lost", 0.0, True, False, Info(success=False)
        self._door += 1
        over = self._door == self._benchmark.length
        return f"door {self._door}", 0.0, over, False, Info(success=True) if over else Info()

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return (WALK,)

    def close(self) -> Any:
        assert self._open, "a world was closed twice"
        self._open = False
        self._benchmark.census.died()
