"""Batch results: streamed, matched by custom_id and applied once, also after broken downloads.

Lines come in any order, twice, cut, or not at all. Every readable line is kept. A download is repeated if it broke,
held an unreadable line, or fewer answers than the batch counts: a body that ends early at a line end looks complete.
Only then does a request without a line count as not run, and is sent again. A request whose line stays unreadable was
run and billed, and is given up rather than paid for twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import WallClock, account_error
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict
from r2v.llm.providers.spending.journal_state import JournalBatch

_LINES_PER_SYNC = 500  # lines per journal write: bounds memory, and the lines to download again after a kill
_DOWNLOADS = 5  # most downloads of one batch's results


class ResultRecorder(Protocol):
    """The receiver of the results in lines."""

    async def record_results(
        self, results: Sequence[tuple[ProviderRequest, RequestVerdict]], batch: str | None
    ) -> list[ProviderRequest]:
        """Record results as `ResultHandler.record_results` does."""
        ...


@dataclass(kw_only=True)
class BatchResults:
    """The collection of one batch's results; afterwards `retry` holds the requests to be sent again."""

    provider: BatchProvider
    batch: JournalBatch
    recorder: ResultRecorder
    clock: WallClock
    pause: float
    """Most seconds between two downloads."""
    outage: Outage
    retry: list[ProviderRequest] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _open: dict[str, ProviderRequest] = field(default_factory=dict)
    """Requests by custom_id whose line has not been read."""
    _unreadable: set[str | None] = field(default_factory=set)
    """Custom_ids of unreadable lines in the last download; None: a line without a readable custom_id."""
    _billed: set[str] = field(default_factory=set)
    """Custom_ids of all lines with an answer, those of other runs included."""
    _last_error: str = ""

    async def collect(self, state: BatchState) -> None:
        """Download and record all results. Raise EnvironmentFault if they are gone, or incomplete after all
        downloads."""
        self._open = dict(self.batch.requests)
        for download in range(_DOWNLOADS):
            arrived = await self._download(state)
            cut = self._num_cut(state)
            if not self._open or (arrived and not cut and not self._unreadable):
                break
            await self.outage.over()
            if download + 1 < _DOWNLOADS:
                await self.clock.sleep(min(self.pause, 2.0**download))
        if self._open and not arrived:
            raise EnvironmentFault(
                f"batch {self.batch.id}: the download of its results broke off {_DOWNLOADS} times "
                f"({self._last_error}); what arrived is kept: run the same command again"
            )
        if self._open and cut:
            raise EnvironmentFault(
                f"batch {self.batch.id}: {state.completed} of its requests are answered, and {_DOWNLOADS} downloads "
                f"held {state.completed - cut} of them; what arrived is kept, and nothing is paid again: run the same "
                f"command later, or give up the rest by `r2v providers forget {self.batch.id}`"
            )
        await self._record_missing(state)

    def _num_cut(self, state: BatchState) -> int:
        """Return the number of answers that the batch counts and no download has held."""
        return max(0, state.completed - len(self._billed) - len(self._unreadable)) if state.files else 0

    async def _download(self, state: BatchState) -> bool:
        """Read the lines once; return False if the connection broke."""
        self._unreadable, results = set(), list[tuple[ProviderRequest, RequestVerdict]]()
        try:
            async for line in self.provider.results(state):
                request = self._open.get(line.custom_id or "")
                if line.verdict is not None and line.verdict.billed:
                    self._billed.add(line.custom_id or "")
                if line.verdict is None:
                    self._unreadable.add(line.custom_id)
                elif request is None:
                    self.counts["again" if line.custom_id in self.batch.accounted else "stranger"] += 1
                else:
                    del self._open[request.custom_id]
                    results.append((request, line.verdict))
                    if len(results) >= _LINES_PER_SYNC:
                        await self._record(results)
                        results = []
        except ProviderFault as fault:
            self._last_error = fault.reason
            self.outage.failed(fault)
            if fault.status == 404:  # deleted or expired at the provider: no retry brings them back
                raise EnvironmentFault(
                    f"batch {self.batch.id}: its results are gone at {self.provider.name} "
                    f"({fault.reason}); they were paid: give this batch up alone by `r2v providers forget "
                    f"{self.batch.id}`, then run the same command again, which pays for it anew"
                ) from None
            if fault.kind == "account":
                raise account_error(self.provider.name, fault.reason) from None
            return False
        finally:  # also of a broken download: the lines read so far are paid for
            await self._record(results)
        return True

    async def _record(self, results: Sequence[tuple[ProviderRequest, RequestVerdict]]) -> None:
        if results:
            self.retry += await self.recorder.record_results(results, self.batch.key)
        for _, verdict in results:
            self.counts[verdict.kind] += 1

    async def _record_missing(self, state: BatchState) -> None:
        """Record verdicts for the requests without a readable line. Raise EnvironmentFault if all results are gone."""
        if self._open and state.completed and not state.files:
            raise EnvironmentFault(
                f"batch {self.batch.id}: {state.completed} of its requests are answered and their "
                "results are not available (archived?); they were paid: give this batch up alone by "
                f"`r2v providers forget {self.batch.id}`, then run the same command again, which pays for it anew"
            )
        # an unreadable line without a custom_id may be of any request, so any open one may have been paid
        any_nameless = None in self._unreadable
        results = []
        for request in self._open.values():
            if any_nameless or request.custom_id in self._unreadable:
                self.counts["unreadable"] += 1
                verdict = RequestVerdict(
                    kind="fatal", own=True, reason="its line of results can't be read; it was paid"
                )
            else:
                self.counts["missing"] += 1
                verdict = RequestVerdict(kind="retry", reason=f"no line in the results ({state.state})", billed=False)
            results.append((request, verdict))
        self._open = {}
        await self._record(results)
