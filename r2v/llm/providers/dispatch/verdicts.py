"""Verdicts: each is journaled first, and then handed to who waits for it.

In this order: a conversation may only go on with an answer that would survive a crash. What concerns all requests ends
the run here: an account that is refused, and requests that were all refused before one was answered, since then it is
the model, a parameter or the endpoint that is wrong, and not a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.batch_caching import BatchCaching
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.result_handler import account_error
from r2v.llm.providers.in_flight import InFlightRequests
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import result_row

_ALL_REFUSED = 10
"""Requests that are refused, with no answer among them, before that counts as everybody's matter."""

Results = Sequence[tuple[ProviderRequest, RequestVerdict]]


class VerdictRecorder:
    """The verdicts of one run. end: ends the run with an error."""

    def __init__(
        self,
        provider: str,
        tracker: SpendTracker,
        in_flight: InFlightRequests,
        policy: DispatchPolicy,
        end: Callable[[BaseException], None],
        caching: BatchCaching,
    ) -> None:
        self._provider, self._tracker, self._in_flight, self._caching = provider, tracker, in_flight, caching
        self._policy, self._end = policy, end
        # counted at once: the journal's own counts follow when the rows are on disk
        self._answered, self._refused = tracker.state.counts["answered"], tracker.state.counts["fatal"]

    async def record(self, results: Results, batch: str | None) -> list[ProviderRequest]:
        """Journal these results, and resolve the requests that have an answer or a refusal; those to be sent again."""
        results = [(request, self._final(request, verdict)) for request, verdict in results]
        for request, verdict in results:
            self._tracker.learn(request, verdict)
            if batch is not None:
                self._caching.learn(request, verdict)
        if reason := self._all_refused(results):
            # not remembered as refused: once the cause is mended, the same requests may be answered
            results = [(request, replace(verdict, kind="retry")) for request, verdict in results]
            self._end(
                EnvironmentFault(
                    f"{self._provider} {self._tracker.rate.model}: no request was answered, and all were refused, "
                    f"first: {reason}; see to the model and its parameters, then run the same command again"
                )
            )
        await self._tracker.write(
            *(
                result_row(request, verdict, self._tracker.billed(request, verdict, batch=batch is not None), batch)
                for request, verdict in results
            )
        )
        again = list[ProviderRequest]()
        for request, verdict in results:
            if verdict.kind in ("ok", "fatal"):
                self._in_flight.resolve(request, verdict)
            elif verdict.kind == "account":
                self._end(account_error(self._provider, verdict.reason))
            else:
                again.append(request)
        return again

    def _final(self, request: ProviderRequest, verdict: RequestVerdict) -> RequestVerdict:
        """The verdict; an answer without text is final when it is the last that the policy allows, of any process."""
        silent = self._tracker.state.silent[request.identity] + 1
        if verdict.kind != "silent" or silent < self._policy.silent_answers:
            return verdict
        return replace(verdict, kind="fatal", reason=f"{silent} answers without text")

    def _all_refused(self, results: Results) -> str:
        """Why, where nothing was answered yet and these make too many refusals; else nothing."""
        reasons = [verdict.reason for _, verdict in results if verdict.kind == "fatal"]
        self._refused += len(reasons)
        self._answered += sum(verdict.kind == "ok" for _, verdict in results)
        return reasons[0] if reasons and not self._answered and self._refused >= _ALL_REFUSED else ""
