"""A benchmark whose environments share sites, and the sites themselves, which count their concurrent users."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from r2v.envs.base import Capabilities, Info, Task
from r2v.llm.types import Request
from r2v.wire.message import ToolSpec
from tests.counted import WALK, straight_on, walk


@dataclass
class LoopbackSite:
    """A site set: its state, its current users, and the violations it has seen."""

    state: int = 0
    readers: int = 0
    writers: int = 0
    most_readers: int = 0
    overlaps: list[str] = field(default_factory=list)
    visits: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, task: Task) -> None:
        with self.lock:
            self.visits.append(task.task_id)
            self.writers += task.mutates
            self.readers += not task.mutates
            self.most_readers = max(self.most_readers, self.readers)
            if self.writers > 1 or (self.writers and self.readers):
                self.overlaps.append(task.task_id)

    def leave(self, task: Task) -> None:
        with self.lock:
            self.writers -= task.mutates
            self.readers -= not task.mutates


@dataclass(frozen=True)
class SharedShop:
    """A benchmark in which every third task buys, which changes the shop; the others look. `seconds` is the time of a
    site's answer."""

    num_tasks: int = 24
    length: int = 3
    seconds: float = 0.0
    per_site: int = 2
    sites: dict[str, LoopbackSite] = field(default_factory=dict)
    name: str = "shop"
    version: str = "1"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(parallel=False, per_site=self.per_site, waits=True, expert=True)

    def tasks(self) -> Sequence[Task]:
        return [
            Task(task_id=f"t-{number:02}", goal=f"visit shop {number}", mutates=number % 3 == 0)
            for number in range(self.num_tasks)
        ]

    def expert(self, request: Request) -> str:
        return straight_on(request)

    def make(self) -> SharedShopEnvironment:
        return self.make_at("own")

    def make_at(self, site: str) -> SharedShopEnvironment:
        return SharedShopEnvironment(self, self.sites.setdefault(site, LoopbackSite()))


class SharedShopEnvironment:
    def __init__(self, shop: SharedShop, site: LoopbackSite) -> None:
        self._shop, self._site = shop, site
        self._task: Task | None = None

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        if self._task is None:
            self._site.enter(task)
        self._task, self._door = task, 0
        if task.mutates:
            self._site.state = 0
        return "door 0", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        assert self._task is not None
        time.sleep(self._shop.seconds)
        self._site.state += self._task.mutates
        if self._task.mutates and self._site.state != self._door + 1:
            return "somebody else was here", 0.0, True, False, Info(success=False)
        if action != walk(self._door):
            return "lost", 0.0, True, False, Info(success=False)
        self._door += 1
        over = self._door == self._shop.length
        return f"door {self._door}", 0.0, over, False, Info(success=True) if over else Info()

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return (WALK,)

    def close(self) -> None:
        if self._task is not None:
            self._site.leave(self._task)
            self._task = None
