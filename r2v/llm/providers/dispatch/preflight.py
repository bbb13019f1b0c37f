"""Preflight: one cheap call before the first request of a run, with its model, key and parameters.

A refusal of this call would hit every request, so the run ends with the provider's reason before thousands of lines are
uploaded or hours pass. The call asks for one word with the tools and sampling of the first request, and costs a
fraction of a cent, which is journaled. A run with an answer in its journal makes no such call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, Spawn, WallClock, account_error
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.provider import Provider, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, make_request
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.types import Request
from r2v.wire.message import Message

_WORDS, _OUTPUT = "Reply with the word ok.", 16
_LIMIT = re.compile(r"max_(completion_|output_)?tokens|output limit", re.I)
_BACKOFF = 1.0
"""Seconds of the first backoff."""


class Preflight:
    """The preflight call, and the requests that wait for it."""

    def __init__(
        self,
        provider: Provider,
        tracker: SpendTracker,
        policy: DispatchPolicy,
        clock: WallClock,
        spawn: Spawn,
        outage: Outage,
    ) -> None:
        self._provider, self._tracker, self._policy = provider, tracker, policy
        self._clock, self._spawn, self._outage = clock, spawn, outage
        state = tracker.state
        self._is_due = policy.preflight and not (state.answers or state.batches or state.counts["preflight"])
        self._example: Request | None = None
        self._held: list[ProviderRequest] = []
        self._turn: Callable[[], AbstractAsyncContextManager[bool]] = lambda: nullcontext(True)

    def share(self, turn: Callable[[], AbstractAsyncContextManager[bool]]) -> None:
        """Share the call with other processes: `turn` holds its lease, and yields True if the call is still due."""
        self._turn = turn

    def excuse(self) -> None:
        """Skip the call, because the project has an answer of this model and endpoint."""
        self._is_due = False

    def see(self, requests: Sequence[Request]) -> None:
        """Keep the first request of the run, whose tools and sampling the call copies."""
        if self._example is None and requests:
            self._example = requests[0]

    def hold(self, requests: Sequence[ProviderRequest], send: Callable[[Sequence[ProviderRequest]], None]) -> bool:
        """Hold requests until the call has passed and `send` them then; return False if no call is due."""
        if not self._is_due:
            return False
        if not self._held:
            self._spawn(self._release(send))
        self._held += requests
        return True

    async def _release(self, send: Callable[[Sequence[ProviderRequest]], None]) -> None:
        """Make the call, then send the held requests. Raise EnvironmentFault if the call is refused."""
        async with self._turn() as is_due:
            if is_due and (fault := await self.probe()) is not None and fault.kind != "retry":
                if fault.kind == "account":
                    raise account_error(self._provider.name, fault.reason)
                limit = "; teacher.model.limit names that parameter" if _LIMIT.search(fault.reason) else ""
                raise EnvironmentFault(
                    f"{self._provider.name}: a call before the run was refused: {fault.reason}{limit}; nothing else "
                    "was sent: check the model and its parameters, then run the same command again"
                )
        self._is_due = False
        held, self._held = self._held, []
        send(held)

    @property
    def is_ready(self) -> bool:
        """True if this process has seen a request whose parameters a question can copy."""
        return self._example is not None

    async def probe(self) -> ProviderFault | None:
        """Ask a plain question until it is answered or refused; return None, or the refusal, or the last fault of
        `attempts`."""
        assert self._example is not None
        full, fault = self._example.max_tokens, None
        limit = min(_OUTPUT, full)
        for attempt in range(self._policy.attempts):
            fault = await self._call(self._question(limit))
            if fault is None:
                break
            if fault.kind != "retry":
                if limit == full or not _LIMIT.search(fault.reason):
                    break
                limit = full  # a thinking model may refuse such a low limit
            elif self._outage.failed(fault):
                await self._outage.over()
            else:
                await self._clock.sleep(fault.retry_after or _BACKOFF * 2.0**attempt)
        return fault

    def _question(self, limit: int) -> Request:
        assert self._example is not None
        messages = (Message(role="user", content=_WORDS),)
        return replace(self._example, messages=messages, key=("preflight",), num_samples=1, max_tokens=limit)

    async def _call(self, question: Request) -> ProviderFault | None:
        """Make one call within the budget and journal its cost; return its fault, if any."""
        state, tracker = self._tracker.state, self._tracker
        request = state.new_attempt(make_request(state.run, question, self._provider.request_body(question)))
        worst_case = tracker.worst_case(request, batch=False)
        while not tracker.set_aside(worst_case):
            if not await tracker.budget.extend(worst_case):
                raise tracker.budget.exhausted(worst_case)
        row = {"id": request.custom_id, "sha256": request.sha256}
        await tracker.write_reservation({"row": "call", **row, "usd": worst_case})
        try:
            result = await self._provider.call(request)
        except ProviderFault as fault:
            if fault.ambiguous and fault.status not in (503, 529):  # those refuse before anything is run
                await tracker.write({"row": "lost", **row, "usd": worst_case, "why": fault.reason})
            else:
                await tracker.write(_failed(row, "retry", 0.0, fault.reason))
            return fault
        self._outage.answered()
        usd = tracker.billed(request, result.verdict, batch=False)
        await tracker.write(_failed(row, "preflight", round(usd, 10), "the call before the run"))
        # a "failed" row: its answer belongs to no conversation, only its cost counts
        return None


def _failed(row: dict[str, str], kind: str, usd: float, reason: str) -> dict[str, object]:
    return {"row": "failed", **row, "batch": None, "usd": usd, "kind": kind, "reason": reason}
