"""Sites: worlds that share state (a shop that every episode buys from), and who may play on which of them when.

    sites = SitePool.of(config.rollout, benchmark, root)       # None where worlds share nothing
    async with placed(sites, task, waves) as site: ...         # the site set that an episode's world lives on

A benchmark says by `Capabilities.parallel=False` that its worlds share a site set, how many episodes that only read it
go side by side (`per_site`), and which tasks change it (`Task.mutates`). Those run alone on a site set, which the
benchmark's `reset` puts back before each. `rollout.sites` names several sets, each with a state of its own; without it
there is the one that the benchmark is built with. A set is held by a lease while something is played on it, so any
number of processes share the sets. Who asked first is served first: a task that changes a site is not starved by
those that only read.
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
"""Seconds between two looks at site sets that other processes hold."""
_PLACED: ContextVar[Site | None] = ContextVar("placed", default=None)
"""Where this conversation's episode lives: a branch of it that is played meanwhile lives there too."""


@dataclass
class Site:
    """One site set. `name` is None for the one that the benchmark is built with."""

    name: str | None
    path: Path
    """Of its lease."""
    readers: int = 0
    writing: bool = False
    held: ExitStack | None = None
    """Releases the lease; None while this process does not hold it."""

    @property
    def idle(self) -> bool:
        """Whether nothing of this process is played on it."""
        return not self.readers and not self.writing

    def take(self) -> bool:
        """Hold its lease; False where another process does."""
        if self.held is None:
            held = ExitStack()
            try:
                held.enter_context(lease(self.path))
            except LeaseConflict:
                return False
            self.held = held
        return True

    def give_back(self) -> None:
        """Let others have it."""
        if self.held is not None:
            self.held.close()
            self.held = None


@dataclass
class _Asking:
    """An episode that waits for a place."""

    alone: bool
    answer: asyncio.Future[Site]


@asynccontextmanager
async def placed(sites: SitePool | None, task: Task, waves: Waves) -> AsyncIterator[str | None]:
    """With a place for an episode of the task, where worlds share sites: the name of the site set. None: the one that
    the benchmark is built with, or worlds share nothing."""
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
    _queue: list[_Asking] = field(default_factory=list)

    @classmethod
    def of(cls, rollout: RolloutConfig, benchmark: Benchmark, root: Path) -> SitePool | None:
        """The pool; None where worlds share nothing. Raises UsageError where sites are named that the benchmark cannot
        take."""
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
        """Wait for a place for an episode of the task, and give it back at the end. Within one it is the same place."""
        if (placed := _PLACED.get()) is not None:
            yield placed
            return
        asking = _Asking(task.mutates, asyncio.get_running_loop().create_future())
        self._queue.append(asking)
        try:
            self._serve()
            site = await waves.wait(asking.answer)
        except BaseException:
            self._forget(asking)
            raise
        token = _PLACED.set(site)
        try:
            yield site
        finally:
            _PLACED.reset(token)
            self._leave(site, asking)

    def _forget(self, asking: _Asking) -> None:
        """Of an episode that was cancelled while it waited."""
        if asking in self._queue:
            self._queue.remove(asking)
        elif asking.answer.done() and not asking.answer.cancelled():
            self._leave(asking.answer.result(), asking)

    def _leave(self, site: Site, asking: _Asking) -> None:
        if asking.alone:
            site.writing = False
        else:
            site.readers -= 1
        self._serve()

    def _serve(self) -> None:
        """Give places in the order of asking. Who must be alone and can't be yet reserves the set with the fewest
        readers, which nobody behind is given."""
        reserved: list[Site] = []
        held_elsewhere = False
        for asking in [*self._queue]:
            if asking.answer.done():  # cancelled
                self._queue.remove(asking)
                continue
            free = [site for site in self.sites if site not in reserved and not site.writing]
            fitting = [site for site in free if (site.idle if asking.alone else site.readers < self.per_site)]
            site = next((site for site in sorted(fitting, key=lambda site: site.readers) if site.take()), None)
            held_elsewhere |= bool(fitting) and site is None
            if site is not None:
                self._queue.remove(asking)
                site.writing, site.readers = asking.alone, site.readers + (not asking.alone)
                asking.answer.set_result(site)
            elif asking.alone and free and not fitting:
                reserved.append(min(free, key=lambda site: site.readers))
        for site in self.sites:
            if site.idle:
                site.give_back()
        if held_elsewhere:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._serve)


def _label(name: str) -> str:
    """A site's name as a file's: what of it a folder may hold, and a hash where that is not all of it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
