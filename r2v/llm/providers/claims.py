"""Claims: of the processes of a project, one asks each request, and the others wait for its answer.

A wave of requests is claimed under the ledger's lease: what somebody else has been answered is taken from there, what
somebody else is asking is waited for, and the rest is written down as ours before it is sent. Waiting means looking
into the other's journal now and then. Where its writer is dead, its batches are brought home by whoever waits for one
(`adopt`); what it had merely claimed is claimed anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from r2v.errors import LeaseConflict
from r2v.llm.providers.dispatch.result_handler import Spawn, WallClock
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, reply_key
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_view import JournalView
from r2v.llm.providers.spending.project import ProjectLedger, Replies
from r2v.log import logger
from r2v.storage.lease import lease

_LONGEST_PAUSE = 2.0
"""Seconds between two looks at what others are asking, at most."""

Adopt = Callable[[Path], Awaitable[None]]
"""Bring home the batches of a journal whose writer is dead. Raises LeaseConflict where somebody else does."""


class Claimant(Protocol):
    """Whose requests are claimed."""

    def settle(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Hand on the answer that another process was given."""
        ...

    def dispatch(self, requests: Sequence[ProviderRequest]) -> None:
        """Send what is ours."""
        ...


@asynccontextmanager
async def exclusive(ledger: ProjectLedger, clock: WallClock, path: Path | None = None) -> AsyncIterator[None]:
    """Hold the ledger's lease, or another one of its folder, waiting for it without holding up the event loop."""
    pause = 0.005
    with ExitStack() as holding:
        while True:
            try:
                holding.enter_context(lease(path or ledger.lease))
                break
            except LeaseConflict:
                await clock.sleep(pause)
                pause = min(0.2, 1.5 * pause)
        yield


class Claims:
    """The claims of one process. pause: seconds between two looks."""

    def __init__(
        self,
        ledger: ProjectLedger,
        replies: Replies,
        tracker: SpendTracker,
        claimant: Claimant,
        adopt: Adopt,
        clock: WallClock,
        spawn: Spawn,
        *,
        pause: float,
    ) -> None:
        self._ledger, self._replies, self._tracker = ledger, replies, tracker
        self._claimant, self._adopt, self._clock, self._spawn = claimant, adopt, clock, spawn
        self._pause = min(pause, _LONGEST_PAUSE)
        self._unclaimed: list[ProviderRequest] = []
        self._awaited: dict[str, ProviderRequest] = {}
        """By key: what others are asking."""
        self._claiming = self._waiting = False
        self._looking = asyncio.Lock()
        self.reused = 0
        """Requests that others' answers have settled."""

    def answer(self, request: ProviderRequest) -> RequestVerdict | None:
        """What another process was answered, as far as this one has looked."""
        verdict = self._replies.answer(reply_key(request.identity))
        self.reused += verdict is not None
        return verdict

    @property
    def any_answer(self) -> bool:
        """Whether another process has an answer of this model and endpoint, be it to the call before its run."""
        return self._replies.any_answer

    @asynccontextmanager
    async def first_call(self) -> AsyncIterator[bool]:
        """Hold the right to make the call before a run; whether it is still due: of those who begin together, one
        makes it."""
        async with exclusive(self._ledger, self._clock, self._replies.preflight_lease):
            await self.look()
            yield not self.any_answer

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Claim these, or wait for whoever asks them; the claimant hears what came of each."""
        self._unclaimed += requests
        if self._unclaimed and not self._claiming:
            self._claiming = True
            self._spawn(self._claim_all())

    async def look(self) -> None:
        """Take in what others have written since the last look."""
        async with self._looking:
            await asyncio.to_thread(self._replies.look)

    async def release(self, request: ProviderRequest) -> None:
        """Let others ask it: this process has given it up."""
        await self._tracker.write({"row": "release", "keys": [reply_key(request.identity)]})

    async def _claim_all(self) -> None:
        try:
            while self._unclaimed:
                async with exclusive(self._ledger, self._clock):
                    await self.look()
                    requests, self._unclaimed = self._unclaimed, []
                    answered, ours = self._sort(requests)
                    if ours:
                        keys = [reply_key(request.identity) for request in ours]
                        await self._tracker.write({"row": "claim", "keys": keys})
                for request, verdict in answered:
                    self.reused += 1
                    self._claimant.settle(request, verdict)
                self._claimant.dispatch(ours)
        finally:
            self._claiming = False

    def _sort(
        self, requests: Sequence[ProviderRequest]
    ) -> tuple[list[tuple[ProviderRequest, RequestVerdict]], list[ProviderRequest]]:
        """What is answered, with its answer, and what is ours to ask; what others ask is awaited from now on."""
        answered, ours = list[tuple[ProviderRequest, RequestVerdict]](), list[ProviderRequest]()
        for request in requests:
            key = reply_key(request.identity)
            if (verdict := self._replies.answer(key)) is not None:
                answered.append((request, verdict))
            elif self._replies.in_flight(key) is not None:
                self._awaited[key] = request
            else:
                ours.append(request)
        if self._awaited and not self._waiting:
            self._waiting = True
            self._spawn(self._wait_for_others())
        return answered, ours

    async def _wait_for_others(self) -> None:
        logger.info(
            "  %d requests are being asked by other processes; their answers serve here too", len(self._awaited)
        )
        adopting: dict[Path, asyncio.Task[None]] = {}
        try:
            while self._awaited:
                await self._clock.sleep(self._pause)
                await self.look()
                for key, request in list(self._awaited.items()):
                    verdict = self._replies.answer(key)
                    asking = None if verdict else self._replies.in_flight(key)
                    if asking is None:
                        del self._awaited[key]
                    if verdict is not None:
                        self.reused += 1
                        self._claimant.settle(request, verdict)
                    elif asking is None:
                        self.submit([request])
                    elif not asking.alive and asking.folder not in adopting:
                        adopting[asking.folder] = self._begin(self._bring_home(asking))
                for folder, task in list(adopting.items()):
                    if task.done():
                        del adopting[folder]
                        task.result()
        finally:
            self._waiting = False
            for task in adopting.values():
                task.cancel()
            await asyncio.gather(*adopting.values(), return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def _bring_home(self, view: JournalView) -> None:
        logger.info("  %s: its process is gone; its batches are awaited here", view.folder)
        try:
            await self._adopt(view.folder)
        except LeaseConflict:
            return  # another process does
