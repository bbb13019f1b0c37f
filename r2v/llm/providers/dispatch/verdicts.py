"""Verdict recorder: journals each verdict, then passes it to the conversations that wait for it.

The order matters: a conversation may only continue with an answer that survives a crash. Faults that concern all
requests end the run: a refused account (`Refusals`), and refusals of all requests before one was answered, since then
the model, a parameter or the endpoint is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.batch_or_direct import BatchCaching
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, Spawn, account_error
from r2v.llm.providers.dispatch.preflight import Preflight
from r2v.llm.providers.provider_requests import ProviderRequest, RequestIdentity, RequestVerdict, reply_key
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import result_row
from r2v.log import logger

OnVerdict = Callable[[RequestVerdict], None]


@dataclass
class _InFlight:
    attempts: int = 1
    """Within this process."""
    waiting: list[OnVerdict] = field(default_factory=list)


class InFlightRequests:
    """The requests of one run that have no answer yet, by identity. One that several conversations make at the same
    time is sent once; each of them gets its verdict."""

    def __init__(self) -> None:
        self._entries: dict[RequestIdentity, _InFlight] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def identities(self) -> list[RequestIdentity]:
        """The identities of all requests in flight."""
        return list(self._entries)

    def add(self, request: ProviderRequest, *waiting: OnVerdict) -> None:
        """Add a request with the callbacks that wait for it; none wait for a request of an earlier process."""
        self._entries[request.identity] = _InFlight(waiting=list(waiting))

    def join(self, request: ProviderRequest, on_verdict: OnVerdict) -> bool:
        """Add a callback to the same request; return False if it is not in flight."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return False
        entry.waiting.append(on_verdict)
        return True

    def next_attempt(self, request: ProviderRequest, *, free: bool) -> int | None:
        """Return the number of the attempt after a failed one, from 1; a `free` failure does not count. None for a
        resolved request."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return None
        entry.attempts += not free
        return entry.attempts

    def resolve(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Pass the verdict to all waiting callbacks. A late result of a resolved request changes nothing."""
        # removed first: a callback may send the same request again
        entry = self._entries.pop(request.identity, None)
        for on_verdict in entry.waiting if entry else ():
            on_verdict(verdict)

    def clear(self) -> None:
        """Forget all requests."""
        self._entries.clear()


IN_A_ROW = 10
"""Number of refused conversations in a row that suggests a fault of the account."""

Held = tuple[ProviderRequest, RequestVerdict, str | None]
"""A request, its refusal, and its batch key."""


@dataclass
class Refusals:
    """The refusals of one run whose cause is still unknown.

    A revoked key, a spent balance, a model being reloaded and a single bad prompt are refused in many wordings. Other
    requests distinguish them: a refusal is held until a request sent after it is answered (then it concerns its own
    request), or until ten conversations in a row, or all in flight, are refused and a plain question is refused as
    well. In the second case the run ends, and no request counts as refused.
    """

    _held: list[tuple[int, Held]] = field(default_factory=list)
    _sent: dict[str, int] = field(default_factory=dict)
    _moments: itertools.count[int] = field(default_factory=itertools.count)

    def sent(self, requests: Sequence[ProviderRequest]) -> None:
        """Record that requests are sent now."""
        moment = next(self._moments)
        self._sent |= {request.custom_id: moment for request in requests}

    def hold(self, request: ProviderRequest, verdict: RequestVerdict, batch: str | None) -> None:
        """Hold a refusal until its cause is known."""
        self._sent.pop(request.custom_id, None)
        self._held.append((next(self._moments), (request, verdict, batch)))

    def answered(self, request: ProviderRequest) -> list[Held]:
        """Release the refusals from before an answered request was sent: they concern their own requests."""
        moment = self._sent.pop(request.custom_id, -1)
        own = [held for at, held in self._held if at < moment]
        self._held = [(at, held) for at, held in self._held if at >= moment]
        return own

    def take(self) -> list[Held]:
        """Release all held refusals."""
        held, self._held = [held for _, held in self._held], []
        return held

    def suspects_account(self, in_flight: int) -> bool:
        """True if `IN_A_ROW` conversations in a row are refused, or all of those in flight."""
        conversations = {request.conversation for _, (request, _, _) in self._held}
        return bool(self._held) and (len(conversations) >= IN_A_ROW or len(self._held) >= in_flight)

    @property
    def conversations(self) -> int:
        """Number of conversations with a held refusal."""
        return len({request.conversation for _, (request, _, _) in self._held})

    @property
    def first_reason(self) -> str:
        """Reason of the first held refusal; empty without one."""
        return self._held[0][1][1].reason if self._held else ""


_CUT_FROM, _CUT_RATIO, _MOST_BYTES = 256, 1.25, 8
"""Signs of a server that cuts prompts: least prompt tokens to judge by; ratio of the sizes of two prompts with equal
counts; most bytes per token on average."""

Results = Sequence[tuple[ProviderRequest, RequestVerdict]]


class VerdictRecorder:
    """The verdicts of one run. end: ends the run with an error; preflight: asks plain questions; requeue: sends
    requests again."""

    def __init__(
        self,
        provider: str,
        tracker: SpendTracker,
        in_flight: InFlightRequests,
        policy: DispatchPolicy,
        end: Callable[[BaseException], None],
        caching: BatchCaching,
        preflight: Preflight,
        spawn: Spawn,
        requeue: Callable[[Sequence[ProviderRequest], str], None],
    ) -> None:
        self._provider, self._tracker, self._in_flight, self._caching = provider, tracker, in_flight, caching
        self._policy, self._end, self._preflight, self._spawn, self._requeue = policy, end, preflight, spawn, requeue
        self.refusals = Refusals()
        self.neighbours_taken = False
        """True if the server has answered a conversation with two messages of one side in a row."""
        self._answered = tracker.state.counts["answered"]
        self._probing = self._uncounted = self._cut = False
        self._sizes: dict[int, int] = {}

    async def record(self, results: Results, batch: str | None) -> list[ProviderRequest]:
        """Journal results and resolve the requests with an answer or a refusal; return those to be sent again."""
        results = [(request, self._final(request, verdict)) for request, verdict in results]
        own: list[Held] = []
        held = list[Held]()
        for request, verdict in results:
            self._tracker.learn(request, verdict)
            if batch is not None:
                self._caching.learn(request, verdict)
            if verdict.kind == "ok":
                self._answered += 1
                self.neighbours_taken |= request.neighbours
                own += self.refusals.answered(request)
                self._warn_of_uncounted(verdict)
                self._warn_of_cut(request, verdict)
            elif _may_be_all(verdict):
                held.append((request, verdict, batch))
        # a refusal that may concern all requests is journaled as a retry: as refused, it would never be sent again
        await self._write(
            (request, replace(verdict, kind="retry") if _may_be_all(verdict) else verdict, batch)
            for request, verdict in results
        )
        await self._refuse(own)
        again = list[ProviderRequest]()
        for request, verdict in results:
            if verdict.kind == "ok" or (verdict.kind == "fatal" and verdict.own):
                self._in_flight.resolve(request, verdict)
            elif not _may_be_all(verdict):
                again.append(request)
        for request, verdict, _ in held:
            if request.neighbours and not self.neighbours_taken:
                await self._tracker.write({"row": "release", "keys": [reply_key(request.identity)]})
                self._in_flight.resolve(request, replace(verdict, kind="neighbours"))
            else:
                self.refusals.hold(request, verdict, batch)
        self.look()
        return again

    def look(self) -> None:
        """Check whether the account is at fault, if refusals suggest it. A process that only collects batches asks
        nothing: the next run sends the held requests again."""
        if self._probing or not self._preflight.is_ready:
            return
        if not self.refusals.suspects_account(len(self._in_flight)):
            return
        if not self._answered and self.refusals.conversations >= IN_A_ROW:
            # not journaled as refused: once the cause is fixed, the same requests may be answered
            self._end(
                EnvironmentFault(
                    f"{self._provider} {self._tracker.rate.model}: no request was answered, and all were refused, "
                    f"first: {self.refusals.first_reason}; check the model and its parameters, then run the same "
                    "command again"
                )
            )
            return
        self._probing = True
        self._spawn(self._find_cause())

    async def _find_cause(self) -> None:
        try:
            fault = await self._preflight.probe()
            if fault is not None and fault.kind == "retry":
                self._requeue([request for request, _, _ in self.refusals.take()], fault.reason)
            elif fault is not None:
                raise account_error(self._provider, fault.reason)
            else:
                await self._refuse(self.refusals.take())
        finally:
            self._probing = False
        self.look()

    async def _refuse(self, held: Sequence[Held]) -> None:
        """Resolve refusals of a working account as final; requests refused for the account are sent again, because that
        fault has passed."""
        final = [(request, verdict, batch) for request, verdict, batch in held if verdict.kind == "fatal"]
        await self._write(final)
        for request, verdict, _ in final:
            self._in_flight.resolve(request, verdict)
        if transient := [(request, verdict) for request, verdict, _ in held if verdict.kind == "account"]:
            self._requeue([request for request, _ in transient], transient[0][1].reason)

    async def _write(self, results: Iterable[Held]) -> None:
        tracker = self._tracker
        await tracker.write(
            *(
                result_row(request, verdict, tracker.billed(request, verdict, batch=batch is not None), batch)
                for request, verdict, batch in results
            )
        )

    def _final(self, request: ProviderRequest, verdict: RequestVerdict) -> RequestVerdict:
        """Return the verdict; an answer without text becomes final at the policy's limit, counted over all
        processes."""
        silent = self._tracker.state.silent[request.identity] + 1
        if verdict.kind != "silent" or silent < self._policy.silent_answers:
            return verdict
        return replace(verdict, kind="fatal", own=True, reason=f"{silent} answers without text")

    def _warn_of_cut(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Warn once of a server that cuts long prompts: it counts equal tokens in prompts of different lengths, or
        fewer than any text has."""
        tokens = 0 if verdict.tokens is None else verdict.tokens.input
        if tokens < _CUT_FROM or self._cut:
            return
        least = self._sizes.setdefault(tokens, request.size)
        other = max(least, request.size) > _CUT_RATIO * min(least, request.size)
        if other or request.tokens_in > _MOST_BYTES * tokens:
            self._cut = True
            logger.warning(
                "  server may cut long prompts: provider=%s model=%s tokens=%d bytes=%d,%d remedy=shorten them by "
                "teacher.context=%d",
                self._provider,
                self._tracker.rate.model,
                tokens,
                least,
                request.size,
                tokens,
            )

    def _warn_of_uncounted(self, verdict: RequestVerdict) -> None:
        if verdict.tokens is None and not self._uncounted:
            self._uncounted = True
            logger.warning(
                "  answers lack token counts; R2V estimates them and books the worst case: provider=%s model=%s",
                self._provider,
                self._tracker.rate.model,
            )


def _may_be_all(verdict: RequestVerdict) -> bool:
    """True if other requests may be refused as this one is."""
    return verdict.kind == "account" or (verdict.kind == "fatal" and not verdict.own)
