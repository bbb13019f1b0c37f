"""A provider's model as a backend of the wave engine, on a journal by which no request is paid for twice.

`folder` holds the journal and its input files under one lease: a second process is refused (exit 6), or writes a
journal of its own in a project (`project_session`). A request is looked up in the journal first, joins the same
request if that is in flight, is looked up in the project's other journals and claimed there, and otherwise goes to a
dispatcher: in batches, by direct calls, or (auto) by the cheaper way. An error never becomes an answer: its
conversation gets `Unanswered`. Faults of all requests (budget, account, disk) end the run and keep all answers.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from r2v.data.action import parse_action
from r2v.errors import EnvironmentFault, Interrupted, UsageError
from r2v.llm.providers.bodies import has_neighbours
from r2v.llm.providers.claims import Claims
from r2v.llm.providers.dispatch.batch_or_direct import BatchCaching, BatchOrDirect
from r2v.llm.providers.dispatch.batches import BatchDispatcher
from r2v.llm.providers.dispatch.calls import GRACE, CallDispatcher
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, WallClock
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.preflight import Preflight
from r2v.llm.providers.dispatch.progress import ProviderProgress
from r2v.llm.providers.dispatch.verdicts import InFlightRequests, OnVerdict, VerdictRecorder
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.project_session import Alone, ProjectSession
from r2v.llm.providers.provider import BatchProvider, JoinsNeighbours, Provider
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, make_request
from r2v.llm.providers.spending.budget import SharedBudget, open_journal
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import verdict_of
from r2v.llm.providers.verdicts import reply_of
from r2v.llm.types import ModelOutcome, Reply, Request
from r2v.log import logger

_FIRST_REPLIES = 20
"""Replies after which a warning is logged if most hold no action."""
_DIRECT_WAVE = 10_000
"""Most requests in one wave of a provider that takes no batches."""


class Unanswered(EnvironmentFault):
    """A request without an answer. final: sending it again would not help; outcome: the model's failure, None if the
    answer was lost in transit."""

    def __init__(self, reason: str, *, final: bool, outcome: ModelOutcome | None = None) -> None:
        super().__init__(reason)
        self.final, self.outcome = final, outcome


class ProviderRemote:
    """A `Remote[Request, Reply]` (see `r2v.llm.types`).

    scope: the owner of the journal; a journal of another scope is refused. budget: a cap shared with other models, in
    place of the policy's. session: the project that shares replies and caps; None: a journal outside any project.
    clock: a virtual one in tests. sync: flushes a row to the disk. Raises UsageError for mode=batch with a provider or
    model that takes no batches.
    """

    def __init__(
        self,
        provider: Provider,
        rate: Rate,
        folder: Path,
        policy: DispatchPolicy,
        *,
        scope: Mapping[str, Any],
        budget: SharedBudget | None = None,
        session: ProjectSession | None = None,
        clock: WallClock | None = None,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.policy, self.rate, self.folder, self._home = policy, rate, folder, folder
        self._provider, self._scope = provider, dict(scope)
        self._batch_provider = provider if isinstance(provider, BatchProvider) and rate.shape.batch else None
        if policy.mode == "batch" and self._batch_provider is None:
            target = provider.name if rate.shape.batch else rate.model
            raise UsageError(f"teacher.mode=batch: {target} takes no batches; allowed: concurrent, auto")
        limit = self._batch_provider.limits.requests if self._batch_provider else _DIRECT_WAVE
        self.max_batch = min(policy.batch_size or limit, limit)
        # without batches, holding requests back for a larger wave only loses time
        may_batch = self._batch_provider is not None and (policy.mode == "batch" or rate.batch < 1.0)
        self.max_age = policy.max_age if may_batch else 0.0
        self._clock = clock or WallClock(now=time.time, sleep=asyncio.sleep)
        self._sync, self._budget, self._session = sync, budget, session or Alone()
        self._claims: Claims | None = None
        self._in_flight = InFlightRequests()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._error: BaseException | None = None
        self._num_replies, self._prose = 0, list[str]()
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Take the lease, read the journal and resume requests in flight. Raise as `ProjectSession` and `open_journal`
        do."""
        self._resources = ExitStack()
        self._error, self._stopping = None, False
        try:
            self.folder = self._session.take(self._home, self._resources)
            await self._open()
        except BaseException:  # the lease must not outlive a failed start, whatever ended it
            self._resources.close()
            raise
        return self

    async def _open(self) -> None:
        journal = Journal(self.folder / "journal.jsonl", sync=self._sync)
        self._resources.callback(journal.close)
        budget = self._budget or self._session.budget(self.policy, self._clock)
        self.tracker = await open_journal(journal, self._scope, self.rate, budget)
        self._progress = ProviderProgress(self.folder, self._provider.name, self.tracker, self._clock)
        caching = BatchCaching(self._batch_provider, self.rate)
        self._choice = BatchOrDirect(self.policy, self.tracker, caching, batches=self._batch_provider is not None)
        outage = Outage(self._provider, self.policy, self._clock, self._spawn)
        self._preflight = Preflight(self._provider, self.tracker, self.policy, self._clock, self._spawn, outage)
        self._verdicts = VerdictRecorder(
            self._provider.name,
            self.tracker,
            self._in_flight,
            self.policy,
            self._end,
            caching,
            self._preflight,
            self._spawn,
            self.requeue,
        )
        self.calls = CallDispatcher(self._provider, self.tracker, self.policy, self, self._clock, self._spawn, outage)
        self.batches: BatchDispatcher | None = None
        if self._batch_provider is not None:
            common = self.tracker, self.policy, self.folder, self, self._clock, self._spawn
            self.batches = BatchDispatcher(self._batch_provider, *common, outage, caching)
            for request in self.batches.resume():
                self._in_flight.add(request)
        self._claims = await self._session.open(
            self.tracker, self._in_flight.identities, self, self._clock, self._spawn, pause=self.policy.poll_seconds
        )
        if self._claims is not None:
            self._preflight.share(self._claims.first_call)
            if self._claims.any_answer:
                self._preflight.excuse()
        self._progress.begin(len(self._in_flight))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Batches stay at the provider and in the journal; direct calls and creations in flight are awaited,
        because their answers are paid for."""
        self._stopping = True  # no retries from here on
        for task in self._tasks - self.calls.in_flight:
            task.cancel()
        await asyncio.gather(self.calls.drain(), *([self.batches.drain(GRACE)] if self.batches else []))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._in_flight.clear()
        try:
            await self._provider.close()
        finally:
            if self.tracker.state.counts:
                self._progress.report(self.snapshot())
            self._progress.end()
            self._session.close(self.tracker)
            self._resources.close()

    def send(self, requests: Sequence[Request]) -> list[asyncio.Future[Reply]]:
        """Return one future per request, of its reply or `Unanswered`."""
        unsent: list[ProviderRequest] = []
        self._preflight.see(requests)
        futures = [self._reply(request, unsent) for request in requests]
        (self.dispatch if self._claims is None else self._claims.submit)(unsent)
        self._verdicts.look()
        return futures

    def _reply(self, request: Request, unsent: list[ProviderRequest]) -> asyncio.Future[Reply]:
        """Return the future reply to a request. Each of its samples is a provider request of its own, journaled and
        retried alone; those that must be sent are appended to `unsent`."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        verdicts: dict[int, RequestVerdict] = {}

        def on_verdict(sample: int, verdict: RequestVerdict) -> None:
            verdicts[sample] = verdict
            if future.done():  # another sample has failed, or the run has ended
                return
            if verdict.kind != "ok":
                future.set_exception(Unanswered(verdict.reason, final=verdict.kind == "fatal", outcome=verdict.outcome))
            elif len(verdicts) == request.num_samples:
                reply = reply_of(request, [verdicts[k] for k in range(request.num_samples)], self.rate)
                self._look_for_actions(request, reply)
                future.set_result(reply)

        for sample in range(request.num_samples):
            one_sample = (
                request if request.num_samples == 1 else replace(request, key=(*request.key, sample), num_samples=1)
            )
            self._answer_or_queue(one_sample, partial(self._in_turn, one_sample, partial(on_verdict, sample)), unsent)
        return future

    def _in_turn(self, request: Request, on_verdict: OnVerdict, verdict: RequestVerdict) -> None:
        """Pass on a verdict; after a refusal of consecutive messages of one side, send the request with them joined."""
        if verdict.kind != "neighbours":
            on_verdict(verdict)
            return
        assert isinstance(self._provider, JoinsNeighbours)
        if not self._provider.in_turn:
            self._provider.in_turn = True  # a property of the server: later requests are joined from the start
            logger.warning(
                "  consecutive messages refused; joining them: provider=%s reason=%s",
                self._provider.name,
                verdict.reason,
            )
        unsent: list[ProviderRequest] = []
        self._answer_or_queue(request, on_verdict, unsent)
        (self.dispatch if self._claims is None else self._claims.submit)(unsent)

    def _answer_or_queue(self, request: Request, on_verdict: OnVerdict, unsent: list[ProviderRequest]) -> None:
        """Resolve a request from the journals, join it to the same request in flight, or append it to `unsent`."""
        state = self.tracker.state
        body = self._provider.request_body(request)
        provider_request = make_request(state.run, request, body, reuse=self.policy.reuse)
        if isinstance(self._provider, JoinsNeighbours) and not self._provider.in_turn:
            provider_request = replace(provider_request, neighbours=has_neighbours(request, self.rate.shape))
        identity = provider_request.identity
        if identity in state.answers:
            answer = verdict_of(self.tracker.journal.read(state.answers[identity]))
            self.tracker.learn(provider_request, answer)
            on_verdict(answer)
        elif identity in state.refused:
            on_verdict(state.refused[identity])
        elif self._claims is not None and (verdict := self._claims.answer(provider_request)) is not None:
            on_verdict(verdict)
        elif not self._in_flight.join(provider_request, on_verdict):
            attempt = state.new_attempt(self.tracker.bounded(provider_request))
            self._in_flight.add(attempt, on_verdict)
            unsent.append(attempt)

    def _look_for_actions(self, request: Request, reply: Reply) -> None:
        """Warn once, with an example, if most of the first replies hold no action."""
        if not request.tools or self._num_replies >= _FIRST_REPLIES:
            return
        names = {tool.name for tool in request.tools}
        prose = [sample.text for sample in reply.samples if parse_action(sample.text).action_type not in names]
        self._num_replies += 1
        self._prose += prose[:1]
        if self._num_replies == _FIRST_REPLIES and 2 * len(self._prose) > _FIRST_REPLIES:
            logger.warning(
                "  replies hold no tool call: provider=%s model=%s replies=%d/%d example=%.200r remedy=check "
                "teacher.actions and teacher.max_tokens",
                self._provider.name,
                self.rate.model,
                len(self._prose),
                _FIRST_REPLIES,
                self._prose[0],
            )

    def settle(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Resolve a request by an answer that another process paid for."""
        self._in_flight.resolve(request, verdict)
        self._verdicts.look()

    def dispatch(self, requests: Sequence[ProviderRequest]) -> None:
        """Send requests in a batch or by direct calls, after the preflight call has passed."""
        if not requests or self._preflight.hold(requests, self.dispatch):
            return
        self._verdicts.refusals.sent(requests)
        if self.batches and self._choice.use_batch(requests, len(self._in_flight), self.batches.waits.typical):
            self.batches.submit(requests)
        else:
            self.calls.submit(requests)

    async def record_results(
        self, results: Sequence[tuple[ProviderRequest, RequestVerdict]], batch: str | None
    ) -> list[ProviderRequest]:
        """Journal results and resolve the requests with an answer or a refusal; return those to be sent again."""
        again = await self._verdicts.record(results, batch)
        self._progress.show()
        if self._progress.due:
            self._progress.report(self.snapshot())
        return again

    def requeue(self, requests: Sequence[ProviderRequest], reason: str, *, free: bool = False) -> None:
        """Send requests again under new custom_ids, up to `policy.attempts` times; `free` attempts do not count."""
        retried = []
        for request in () if self._stopping else requests:
            attempt = self._in_flight.next_attempt(request, free=free)
            if attempt is None:  # resolved meanwhile, by a late result of an earlier attempt
                continue
            if attempt > self.policy.attempts:
                why = f"no answer after {self.policy.attempts} attempts" + (f": {reason}" if reason else "")
                self._in_flight.resolve(request, RequestVerdict(kind="retry", reason=why))
                self._verdicts.look()
                if self._claims is not None:  # other processes may try
                    self._spawn(self._claims.release(request))
            else:
                retried.append(self.tracker.state.new_attempt(request))
        self.dispatch(retried)

    def batches_unavailable(self, requests: Sequence[ProviderRequest], reason: str) -> None:
        """Handle a provider that refuses all batches: mode auto calls directly from here on, mode batch ends."""
        if self.policy.mode == "batch":
            self._end(
                EnvironmentFault(
                    f"{self._provider.name} takes no batches: {reason}; run again later, or with "
                    "teacher.mode=concurrent (full price)"
                )
            )
            return
        logger.warning(
            "  batches refused; calling directly at full price: provider=%s reason=%s", self._provider.name, reason
        )
        self._choice.batches_available = False
        self.requeue(requests, reason, free=True)

    async def cancel(self, patience: float = 900.0) -> dict[str, Any]:
        """Cancel all batches and collect their answers so far; return the snapshot. Raise Interrupted if batches have
        not ended after `patience` seconds."""
        return await self.collect_batches(patience, cancel=True)

    async def collect_batches(self, patience: float = math.inf, *, cancel: bool = False) -> dict[str, Any]:
        """Collect the batches in flight without sending requests; return the snapshot. Raise as `cancel` does."""
        async with self:
            self._stopping = True
            deadline = self._clock.now() + patience
            batches = self.tracker.state.batches
            if cancel and self.batches is not None:
                await self.batches.cancel()
            while batches and self._error is None:
                if self._clock.now() >= deadline:
                    raise Interrupted(
                        f"{len(batches)} batches are still being cancelled after "
                        f"{patience:.0f} s; the same command looks again"
                    )
                await self._clock.sleep(min(1.0, self.policy.poll_seconds))
            if self._error is not None:
                raise self._error
            return self.snapshot()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """End the run: the error is set on all waiting futures and on those of later requests."""
        self._error = self._error or error  # the first error is the cause; later ones are its consequences
        waiting, self._waiting = self._waiting, set()
        for future in (future for future in waiting if not future.done()):
            future.set_exception(self._error)

    def snapshot(self) -> dict[str, Any]:
        """Return the figures of the run; see `r2v.llm.providers.dispatch.progress`."""
        return self._progress.figures(self.batches.queued if self.batches else 0, len(self._in_flight))
