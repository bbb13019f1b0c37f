"""Claims: each request is sent by one process of the project, and the others wait for its answer.

A wave of requests is claimed under the ledger's lease: answers in other journals are reused, requests in flight
elsewhere are awaited, and the rest is journaled as claimed here before it is sent. Awaiting polls the other journal.
If its writer is dead, a waiting process collects its batches (`adopt`), and claims anew the requests that were claimed
but not sent in a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from r2v.errors import LeaseConflict
from r2v.llm.providers.dispatch.dispatch_policy import Spawn, WallClock
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, reply_key
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_view import JournalView
from r2v.llm.providers.spending.project import ProjectLedger, Replies
from r2v.log import logger
from r2v.storage.lease import lease

_LONGEST_PAUSE = 2.0
"""Most seconds between two polls of the journals that others write."""

Adopt = Callable[[Path], Awaitable[None]]
"""Collect the batches of a journal whose writer is dead. Raises LeaseConflict if another process already does."""


class Claimant(Protocol):
    """The sender of the claimed requests."""

    def settle(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Resolve a request by an answer that another process paid for."""
        ...

    def dispatch(self, requests: Sequence[ProviderRequest]) -> None:
        """Send requests that this process has claimed."""
        ...


@asynccontextmanager
async def exclusive(ledger: ProjectLedger, clock: WallClock, path: Path | None = None) -> AsyncIterator[None]:
    """Hold the ledger's lease, or another one of its folder; waiting for it does not block the event loop."""
    pause = 0.005  # seconds: a lease is held for one read and one write, so most conflicts end within a few ms
    with ExitStack() as holding:
        while True:
            try:
                holding.enter_context(lease(path or ledger.lease))
                break
            except LeaseConflict:
                await clock.sleep(pause)
                pause = min(0.2, 1.5 * pause)  # back off: hundreds of helpers may poll one file of a shared disk
        yield


class Claims:
    """The claims of one process. pause: seconds between two polls of other journals."""

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
        """By reply key: requests in flight in other processes."""
        self._claiming = self._waiting = False
        self._looking = asyncio.Lock()
        self.reused = 0
        """Requests resolved by answers of other journals."""

    def answer(self, request: ProviderRequest) -> RequestVerdict | None:
        """Return an answer of another journal, as of the last `look`; None without one."""
        verdict = self._replies.answer(reply_key(request.identity))
        self.reused += verdict is not None
        return verdict

    @property
    def any_answer(self) -> bool:
        """True if another journal holds any answer of this model and endpoint, a preflight call's included."""
        return self._replies.any_answer

    @asynccontextmanager
    async def first_call(self) -> AsyncIterator[bool]:
        """Hold the lease of the preflight call, and yield True if it is still due: of processes that start together,
        one makes it."""
        async with exclusive(self._ledger, self._clock, self._replies.preflight_lease):
            await self.look()
            yield not self.any_answer

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Claim requests and dispatch them, or await the process that has them in flight; each is settled or
        dispatched through the claimant."""
        self._unclaimed += requests
        if self._unclaimed and not self._claiming:
            self._claiming = True
            self._spawn(self._claim_all())

    async def look(self) -> None:
        """Read the rows that other processes have written since the last look."""
        async with self._looking:
            await asyncio.to_thread(self._replies.look)

    async def release(self, request: ProviderRequest) -> None:
        """Release the claim on a request that this process gives up, so that others may send it."""
        await self._tracker.write({"row": "release", "keys": [reply_key(request.identity)]})

    async def _claim_all(self) -> None:
        try:
            while self._unclaimed:
                async with exclusive(self._ledger, self._clock):
                    await self.look()
                    # taken after the await: requests that arrived meanwhile share this lease
                    requests, self._unclaimed = self._unclaimed, []
                    answered, ours = self._sort(requests)
                    if ours:  # journaled under the lease, so that no other process can claim them first
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
        """Return (requests with their answers from elsewhere, requests to send); await those in flight elsewhere."""
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
        logger.info("  awaiting answers of other processes: requests=%d", len(self._awaited))
        adopting: dict[Path, asyncio.Task[None]] = {}
        try:
            while self._awaited:
                await self._clock.sleep(self._pause)
                await self.look()
                # a copy: settling a request can submit others, which changes the dictionary
                for key, request in list(self._awaited.items()):
                    verdict = self._replies.answer(key)
                    asking = None if verdict else self._replies.in_flight(key)
                    if asking is None:
                        del self._awaited[key]
                    if verdict is not None:
                        self.reused += 1
                        self._claimant.settle(request, verdict)
                    elif asking is None:  # refused, released or lost there: claimed anew
                        self.submit([request])
                    elif not asking.alive and asking.folder not in adopting:
                        adopting[asking.folder] = asyncio.create_task(self._collect(asking))
                for folder, task in list(adopting.items()):
                    if task.done():
                        del adopting[folder]
                        task.result()  # raises its error here, which ends the run
        finally:
            self._waiting = False
            for task in adopting.values():
                task.cancel()
            await asyncio.gather(*adopting.values(), return_exceptions=True)

    async def _collect(self, view: JournalView) -> None:
        logger.info("  collecting the batches of a dead process: journal=%s", view.folder)
        try:
            await self._adopt(view.folder)
        except LeaseConflict:
            return  # another process collects them already
