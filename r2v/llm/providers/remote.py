"""A provider's model behind the wave engine: what was answered once is never paid again.

    with_money = ProviderRemote(OpenAI(rate), rate, folder, Plan(mode="auto", max_usd=20), scope={...})
    model = waves.model(with_money)

`folder` holds the journal and what belongs to it, under one lease: a second process is refused (exit 6). A question
is looked up in the journal first, joins the same question if that is under way, and else goes out by a lane: in
batches, by direct calls, or (auto) whichever is worth it. An error never becomes an answer: the conversation gets
`Unanswered`, and what concerns them all (budget, account, disk) ends the run with everything kept.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from r2v.errors import EnvironmentFault, InputError, Interrupted
from r2v.llm.providers.dispatch.batch_or_direct import Chooser
from r2v.llm.providers.dispatch.batches import BatchLane
from r2v.llm.providers.dispatch.calls import GRACE, CallLane
from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.dispatch.progress import Progress
from r2v.llm.providers.dispatch.reconcile import Times
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider import Provider, ProviderFault
from r2v.llm.providers.provider_requests import Ask, Question, Verdict, make_ask
from r2v.llm.providers.replies import reply_of
from r2v.llm.providers.spending.budget import Purse, Till
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import Book, line_row, verdict_of
from r2v.llm.types import Reply, Request
from r2v.log import logger
from r2v.storage.lease import lease

VERSION = 1


class Unanswered(EnvironmentFault):
    """One question that has no answer. `final`: the provider refused it, and asking again would change nothing."""

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final


@dataclass
class _Flight:
    """A question under way, and who waits for it."""

    ask: Ask
    tries: int = 1
    waiting: list[Callable[[Verdict], None]] = field(default_factory=list)


class ProviderRemote:
    """A `Remote[Request, Reply]` (see `r2v.llm.types`).

    scope: what the journal belongs to; a journal of another scope is refused. purse: a cap shared with other models,
    in place of the plan's. times, sync: the clock, and what makes a row survive a power cut.
    """

    def __init__(
        self,
        provider: Provider,
        rate: Rate,
        folder: Path,
        plan: Plan,
        *,
        scope: Mapping[str, Any],
        purse: Purse | None = None,
        times: Times | None = None,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.plan, self.rate, self.folder = plan, rate, folder
        self.max_batch = min(plan.batch_size or provider.limits.requests, provider.limits.requests)
        self.max_age = plan.max_age
        self._provider, self._scope = provider, dict(scope)
        self._times = times or Times(now=time.time, sleep=asyncio.sleep)
        self._sync, self._purse = sync, purse
        self._flights: dict[Question, _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._error: BaseException | None = None
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Take the lease, read the journal, take up what is under way."""
        self._held = ExitStack()
        self._error, self._stopping = None, False
        try:
            self._held.enter_context(lease(self.folder / "journal.lease"))
            await self._open()
        except BaseException:
            self._held.close()
            raise
        return self

    async def _open(self) -> None:
        journal = Journal(self.folder / "journal.jsonl", sync=self._sync)
        self._held.callback(journal.close)
        book = Book(run="")
        for place, row in journal.open():
            if row["row"] == "open":
                _check(row, self._scope, journal.path)
                book.run = row["run"]
            book.note(row, place)
        self.till = Till(journal, book, self.rate, self._purse or Purse(self.plan.max_usd))
        if not book.run:
            book.run = secrets.token_hex(4)
            await self.till.write({"row": "open", "version": VERSION, "run": book.run, "scope": self._scope})
        if book.calls:
            logger.warning(
                "  %d direct calls were under way when the last process ended; they may have been billed "
                "(at most $%.4f) and are made again",
                len(book.calls),
                sum(book.calls.values()),
            )
            await self.till.write(
                *(
                    {"row": "lost", "id": name, "usd": usd, "why": "the process ended"}
                    for name, usd in book.calls.items()
                )
            )
        self.batches = BatchLane(self._provider, self.till, self.plan, self.folder, self, self._times, self._spawn)
        self.calls = CallLane(self._provider, self._provider.name, self.till, self.plan, self, self._times, self._spawn)
        self._chooser = Chooser(self.plan, self.till)
        self._progress = Progress(self.folder, self._provider.name, self.till, self._times)
        for ask in self.batches.resume():
            self._flights[ask.question] = _Flight(ask)
        if book.answers:
            logger.info(
                "  %d answers are in the journal%s",
                len(book.answers),
                f", {len(self._flights)} questions are under way" if self._flights else "",
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; batches stay at the provider, and in the journal; what is being made or called is waited for."""
        self._stopping = True
        for task in self._tasks - self.calls.flying:
            task.cancel()
        await asyncio.gather(self.calls.drain(), self.batches.drain(GRACE))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._flights.clear()
        try:
            await self._provider.close()
        finally:
            if self.till.book.counts:
                self._progress.tell(self.snapshot())
            self._held.close()

    def send(self, questions: Sequence[Request]) -> list[asyncio.Future[Reply]]:
        """One reply, or `Unanswered`, per request."""
        fresh: list[Ask] = []
        futures = [self._reply(request, fresh) for request in questions]
        self._route(fresh)
        return futures

    def _reply(self, request: Request, fresh: list[Ask]) -> asyncio.Future[Reply]:
        """The reply to a request: its samples are questions of their own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        verdicts: dict[int, Verdict] = {}

        def had(number: int, verdict: Verdict) -> None:
            verdicts[number] = verdict
            if future.done():
                return
            if verdict.kind != "ok":
                future.set_exception(Unanswered(verdict.reason, final=verdict.kind == "fatal"))
            elif len(verdicts) == request.num_samples:
                future.set_result(reply_of(request, [verdicts[k] for k in range(request.num_samples)], self.rate))

        for number in range(request.num_samples):
            one = request if request.num_samples == 1 else replace(request, key=(*request.key, number), num_samples=1)
            self._question(one, partial(had, number), fresh)
        return future

    def _question(self, request: Request, had: Callable[[Verdict], None], fresh: list[Ask]) -> None:
        book = self.till.book
        ask = make_ask(book.run, request, self._provider.body(request), reuse=self.plan.reuse)
        if ask.question in book.answers:
            had(verdict_of(self.till.journal.read(book.answers[ask.question])))
        elif ask.question in book.refused:
            had(Verdict(kind="fatal", reason=book.refused[ask.question]))
        elif ask.question in self._flights:
            self._flights[ask.question].waiting.append(had)
        else:
            ask = book.claim(ask)
            self._flights[ask.question] = _Flight(ask, waiting=[had])
            fresh.append(ask)

    def _route(self, asks: Sequence[Ask]) -> None:
        if not asks:
            return
        if self._chooser.batched(asks, len(self._flights), self.batches.wait):
            self.batches.take(asks)
        else:
            self.calls.take(asks)

    async def settle(self, told: Sequence[tuple[Ask, Verdict]], batch: str | None) -> None:
        """Journal these verdicts, then hand on the answers and the refusals."""
        batched = batch is not None
        await self.till.write(
            *(line_row(ask, verdict, self.till.usd(ask, verdict, batch=batched), batch) for ask, verdict in told)
        )
        for ask, verdict in told:
            if verdict.kind in ("ok", "fatal"):
                self._land(ask, verdict)
            elif verdict.kind == "account":
                self._end(
                    EnvironmentFault(
                        f"{self._provider.name}: {verdict.reason}; see to the account, then run the same command "
                        "again: "
                        "everything answered is kept"
                    )
                )
        if self._progress.due:
            self._progress.tell(self.snapshot())

    def again(self, asks: Sequence[Ask], reason: str, *, free: bool = False) -> None:
        """Ask these once more under a new name, up to `plan.attempts` times."""
        once_more = []
        for ask in () if self._stopping else asks:
            flight = self._flights.get(ask.question)
            if flight is None:
                continue
            flight.tries += not free
            if flight.tries > self.plan.attempts:
                self._land(
                    ask,
                    Verdict(
                        kind="retry",
                        reason=f"no answer after {self.plan.attempts} tries" + (f": {reason}" if reason else ""),
                    ),
                )
            else:
                flight.ask = self.till.book.claim(ask)
                once_more.append(flight.ask)
        self._route(once_more)

    def broken(self, asks: Sequence[Ask], reason: str) -> None:
        """Batches can't be had: auto says so and calls from here on; batch mode ends."""
        if self.plan.mode == "batch":
            self._end(
                EnvironmentFault(
                    f"{self._provider.name} takes no batches: {reason}; run again later, or with "
                    "teacher.mode=concurrent (full price)"
                )
            )
            return
        logger.warning(
            "  %s takes no batches (%s); what is left is called directly, at full price", self._provider.name, reason
        )
        self._chooser.no_batches = True
        self.again(asks, reason, free=True)

    async def cancel(self, patience: float = 900.0) -> dict[str, Any]:
        """Ask the provider to stop what is under way, and collect what it has answered by then; the snapshot.
        Raises Interrupted where batches have not ended after `patience` seconds."""
        async with self:
            self._stopping = True
            until = self._times.now() + patience
            for batch in list(self.till.book.batches.values()):
                if batch.id is not None:
                    await self._cancel(batch.id)
            while self.till.book.batches and self._error is None:
                if self._times.now() >= until:
                    raise Interrupted(
                        f"{len(self.till.book.batches)} batches are still being cancelled after "
                        f"{patience:.0f} s; the same command looks again"
                    )
                await self._times.sleep(min(1.0, self.plan.poll_seconds))
            if self._error is not None:
                raise self._error
            return self.snapshot()

    async def _cancel(self, batch_id: str) -> None:
        try:
            await self._provider.cancel(batch_id)
        except ProviderFault as fault:  # it may have ended just now; looking at it tells
            logger.info("  batch %s: %s", batch_id, fault.reason)

    def _land(self, ask: Ask, verdict: Verdict) -> None:
        flight = self._flights.pop(ask.question, None)
        for had in flight.waiting if flight else ():
            had(verdict)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """End the run: everybody who waits is told, and whoever asks from now on."""
        self._error = self._error or error
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_exception(self._error)

    def snapshot(self) -> dict[str, Any]:
        """How far everything is; see `r2v.llm.providers.dispatch.progress`."""
        return self._progress.figures(self.batches.queued, len(self._flights))


def _check(row: Mapping[str, Any], scope: Mapping[str, Any], path: Path) -> None:
    """Raises InputError where a journal's first row is of another version, or belongs to something else."""
    if row["version"] != VERSION:
        raise InputError(
            f"{path}: is of version {row['version']}, this R2V writes {VERSION}; finish it with the R2V that began it"
        )
    theirs = row["scope"]
    differ = [
        f"{name}={theirs.get(name)} there, {scope.get(name)} here"
        for name in sorted({*theirs, *scope})
        if theirs.get(name) != scope.get(name)
    ]
    if differ:
        raise InputError(
            f"{path}: belongs to another configuration ({'; '.join(differ)}); use that one, or start a new run"
        )
