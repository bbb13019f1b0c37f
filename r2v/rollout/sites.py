"""Site sets: worlds that share state (a shop that every episode buys from), and the leases that episodes play under.

    sites = SitePool.of(config.rollout, benchmark, root)       # None where worlds share nothing
    async with placed(sites, task, waves) as site: ...         # the name of the episode's site set

A benchmark whose worlds share a site set has `Capabilities.parallel=False`; `per_site` is the number of read-only
episodes that may run on it at a time, and `Task.mutates` marks the tasks that change it. These run alone on a site set,
which the benchmark's `reset` restores before each. `rollout.sites` names several sets, each with its own state; the
default is the one that the benchmark is built with. A set is leased while an episode runs on it, so any number of
processes share the sets. Requests are served in order, so that read-only tasks do not starve one that changes a
site.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from r2v.config import RolloutConfig
from r2v.envs.base import Benchmark, Sited, Task
from r2v.errors import LeaseConflict, UsageError
from r2v.llm.waves import Waves
from r2v.storage.lease import lease
from r2v.storage.paths import SITE_LEASES

_LOOK_AGAIN = 0.5
"""Seconds between two tries to lease site sets that other processes hold."""
_PLACED: ContextVar[Site | None] = ContextVar("placed", default=None)
"""The site set of this conversation's episode; branches of the episode run on it too."""


@dataclass
class Site:
    """A site set. `name` is None for the one that the benchmark is built with."""

    name: str | None
    path: Path
    """Path of its lease."""
    readers: int = 0
    writing: bool = False
    held: ExitStack | None = None
    """Releases the lease; None while this process does not hold it."""

    @property
    def idle(self) -> bool:
        """True if no episode of this process runs on it."""
        return not self.readers and not self.writing

    def take(self) -> bool:
        """Lease it; return False if another process holds the lease."""
        if self.held is None:
            held = ExitStack()
            try:
                held.enter_context(lease(self.path))
            except LeaseConflict:
                return False
            self.held = held
        return True

    def give_back(self) -> None:
        """Release the lease."""
        if self.held is not None:
            self.held.close()
            self.held = None


@dataclass
class _SiteRequest:
    """An episode's request for a site set."""

    alone: bool
    answer: asyncio.Future[Site]


@asynccontextmanager
async def placed(sites: SitePool | None, task: Task, waves: Waves) -> AsyncIterator[str | None]:
    """Yield the name of a site set held for an episode of the task; None for the one that the benchmark is built with,
    and where worlds share nothing."""
    if sites is None:
        yield None
        return
    async with sites.place(task, waves) as site:
        yield site.name


@dataclass
class SitePool:
    """The site sets of a benchmark whose worlds share state."""

    sites: list[Site]
    per_site: int
    _queue: list[_SiteRequest] = field(default_factory=list)

    @classmethod
    def of(cls, rollout: RolloutConfig, benchmark: Benchmark, root: Path) -> SitePool | None:
        """Return the pool; None where worlds share nothing. Raises UsageError for `rollout.sites` of a benchmark that
        cannot use them."""
        able = benchmark.capabilities
        if rollout.sites and (able.parallel or not isinstance(benchmark, Sited)):
            raise UsageError(
                f"rollout.sites: {benchmark.name} takes no sites (it says parallel={str(able.parallel).lower()}, and "
                f"{'has' if isinstance(benchmark, Sited) else 'lacks'} make_at(site)); leave rollout.sites empty"
            )
        if able.parallel:
            return None
        names: list[str | None] = [*rollout.sites] or [None]
        folder = root / SITE_LEASES
        return cls([Site(name, folder / f"{_label(name or benchmark.name)}.lease") for name in names], able.per_site)

    @asynccontextmanager
    async def place(self, task: Task, waves: Waves) -> AsyncIterator[Site]:
        """Yield a site set for an episode of the task, once one is free, and give it back at the end. A branch of the
        episode gets the same one."""
        if (placed := _PLACED.get()) is not None:
            yield placed
            return
        request = _SiteRequest(task.mutates, asyncio.get_running_loop().create_future())
        self._queue.append(request)
        try:
            self._serve()
            site = await waves.wait(request.answer)
        except BaseException:  # cancelled: a site set may have been given meanwhile
            self._forget(request)
            raise
        token = _PLACED.set(site)
        try:
            yield site
        finally:
            _PLACED.reset(token)
            self._leave(site, request)

    def _forget(self, request: _SiteRequest) -> None:
        """Withdraw the request of an episode that was cancelled while it waited."""
        if request in self._queue:
            self._queue.remove(request)
        elif request.answer.done() and not request.answer.cancelled():
            self._leave(request.answer.result(), request)

    def _leave(self, site: Site, request: _SiteRequest) -> None:
        if request.alone:
            site.writing = False
        else:
            site.readers -= 1
        self._serve()

    def _serve(self) -> None:
        """Give site sets in the order of the requests. A task that must be alone, and cannot be yet, reserves the set
        with the fewest readers, which no later request gets."""
        reserved: list[Site] = []
        held_elsewhere = False
        for request in [*self._queue]:
            if request.answer.done():  # cancelled
                self._queue.remove(request)
                continue
            free = [site for site in self.sites if site not in reserved and not site.writing]
            fitting = [site for site in free if (site.idle if request.alone else site.readers < self.per_site)]
            site = next((site for site in sorted(fitting, key=lambda site: site.readers) if site.take()), None)
            held_elsewhere |= bool(fitting) and site is None
            if site is not None:
                self._queue.remove(request)
                site.writing, site.readers = request.alone, site.readers + (not request.alone)
                request.answer.set_result(site)
            elif request.alone and free and not fitting:
                reserved.append(min(free, key=lambda site: site.readers))
        for site in self.sites:  # other processes may lease it
            if site.idle:
                site.give_back()
        if held_elsewhere:  # poll: other processes send no signal
            asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._serve)


def _label(name: str) -> str:
    """Return a site's name as a file name: other characters are replaced, and a hash is added where any were."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
