"""Preflight: one cheap call before the first request of a run, with its model, key and parameters.

What it is refused for, every request would be: the run ends with the provider's reason before thousands of lines are
uploaded, or hours are waited. It asks for a word under the tools and sampling of the first request, so it costs a
fraction of a cent, which the journal counts; a run that has an answer needs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.result_handler import Spawn, WallClock, account_error
from r2v.llm.providers.provider import Provider, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, make_request
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.types import Request
from r2v.wire.message import Message

_WORDS, _OUTPUT = "Reply with the word ok.", 16
_LIMIT = re.compile(r"max_(completion_|output_)?tokens|output limit", re.I)
_BACKOFF = 1.0
"""Seconds."""


class Preflight:
    """The call before a run, and the requests that wait for it."""

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
        """Others may begin at the same time: `turn` holds the right to call, and says whether it is still due."""
        self._turn = turn

    def excuse(self) -> None:
        """No call is due: the project has an answer of this model and endpoint."""
        self._is_due = False

    def see(self, requests: Sequence[Request]) -> None:
        """What the run asks: its first request is the model of the call."""
        if self._example is None and requests:
            self._example = requests[0]

    def hold(self, requests: Sequence[ProviderRequest], send: Callable[[Sequence[ProviderRequest]], None]) -> bool:
        """Whether these wait for the call; they are sent when it has passed."""
        if not self._is_due:
            return False
        if not self._held:
            self._spawn(self._release(send))
        self._held += requests
        return True

    async def _release(self, send: Callable[[Sequence[ProviderRequest]], None]) -> None:
        """Call, and send what waits. Raises EnvironmentFault where the call is refused."""
        async with self._turn() as is_due:
            if is_due and (fault := await self.probe()) is not None and fault.kind != "retry":
                if fault.kind == "account":
                    raise account_error(self._provider.name, fault.reason)
                limit = "; teacher.model.limit names that parameter" if _LIMIT.search(fault.reason) else ""
                raise EnvironmentFault(
                    f"{self._provider.name}: a call before the run was refused: {fault.reason}{limit}; nothing else "
                    "was sent: see to the model and its parameters, then run the same command again"
                )
        self._is_due = False
        held, self._held = self._held, []
        send(held)

    @property
    def is_ready(self) -> bool:
        """True if this process has asked something, and so knows how a plain question is asked."""
        return self._example is not None

    async def probe(self) -> ProviderFault | None:
        """Ask a plain question until it is answered or refused; the refusal, or the last fault of `attempts`."""
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
                limit = full  # a model that thinks may refuse so short a reply
            elif self._outage.failed(fault):
                await self._outage.over()
            else:
                await self._clock.sleep(fault.retry_after or _BACKOFF * 2.0**attempt)
        return fault

    def _question(self, limit: int) -> Request:
        assert self._example is not None
        asked = (Message(role="user", content=_WORDS),)
        return replace(self._example, messages=asked, key=("preflight",), num_samples=1, max_tokens=limit)

    async def _call(self, question: Request) -> ProviderFault | None:
        """Call once, within the budget, and journal what it cost."""
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
            if fault.ambiguous and fault.status not in (503, 529):
                await tracker.write({"row": "lost", **row, "usd": worst_case, "why": fault.reason})
            else:
                await tracker.write(_failed(row, "retry", 0.0, fault.reason))
            return fault
        self._outage.answered()
        usd = tracker.billed(request, result.verdict, batch=False)
        await tracker.write(_failed(row, "preflight", round(usd, 10), "the call before the run"))
        return None


def _failed(row: dict[str, str], kind: str, usd: float, reason: str) -> dict[str, object]:
    return {"row": "failed", **row, "batch": None, "usd": usd, "kind": kind, "reason": reason}
