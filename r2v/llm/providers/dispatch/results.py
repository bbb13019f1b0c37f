"""Results of a batch: streamed, sorted by custom_id, applied once, whatever the download does.

Lines come in any order, twice, cut, or not at all. What is there is kept. A download that broke, or held a line that
can't be read, is had again; a question that no line names was not run and is asked again; one whose line stays
unreadable was paid for, and is given up rather than paid twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.reconcile import Times
from r2v.llm.providers.provider import BatchState, Provider, ProviderFault
from r2v.llm.providers.provider_requests import Ask, Verdict
from r2v.llm.providers.spending.journal_state import Batch

_TOGETHER = 500
"""Lines that share one sync of the journal."""
_DOWNLOADS = 3


class Settles(Protocol):
    """Where lines go."""

    async def settle(self, told: Sequence[tuple[Ask, Verdict]], batch: str | None) -> None:
        """Journal and hand on what is known of these."""
        ...


@dataclass(kw_only=True)
class Results:
    """The collection of one batch. Afterwards `retry` are the questions to be asked again."""

    provider: Provider
    batch: Batch
    outcome: Settles
    times: Times
    pause: float
    retry: list[Ask] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _open: dict[str, Ask] = field(default_factory=dict)
    _unreadable: set[str | None] = field(default_factory=set)
    _trouble: str = ""

    async def collect(self, state: BatchState) -> None:
        """Everything that the batch has to say, settled. Raises EnvironmentFault where its answers are gone."""
        self._open = dict(self.batch.asks)
        for download in range(_DOWNLOADS):
            whole = await self._download(state)
            if not self._open or (whole and not self._unreadable):
                break
            if download + 1 < _DOWNLOADS:
                await self.times.sleep(min(self.pause, 2.0**download))
        else:
            whole = whole or not self._open
        if not whole:
            raise EnvironmentFault(
                f"batch {self.batch.id}: its results broke off {_DOWNLOADS} times "
                f"({self._trouble}); what came is kept: run the same command again"
            )
        await self._missing(state)

    async def _download(self, state: BatchState) -> bool:
        """Go over the lines once; False where the connection broke."""
        self._unreadable, told = set(), list[tuple[Ask, Verdict]]()
        try:
            async for line in self.provider.lines(state):
                ask = self._open.get(line.custom_id or "")
                if line.verdict is None:
                    self._unreadable.add(line.custom_id)
                elif ask is None:
                    self.counts["again" if line.custom_id in self.batch.settled else "stranger"] += 1
                else:
                    del self._open[ask.custom_id]
                    told.append((ask, line.verdict))
                    if len(told) >= _TOGETHER:
                        await self._settle(told)
                        told = []
        except ProviderFault as fault:
            self._trouble = fault.reason
            if fault.kind == "account":
                raise account(self.provider.name, fault.reason) from None
            if fault.status == 404:
                raise EnvironmentFault(
                    f"batch {self.batch.id}: its results are gone at {self.provider.name} "
                    f"({fault.reason}); they were paid: start a new run, which pays anew"
                ) from None
            return False
        finally:
            await self._settle(told)
        return True

    async def _settle(self, told: Sequence[tuple[Ask, Verdict]]) -> None:
        if told:
            await self.outcome.settle(told, self.batch.key)
        for ask, verdict in told:
            self.counts[verdict.kind] += 1
            if verdict.kind == "retry":
                self.retry.append(ask)

    async def _missing(self, state: BatchState) -> None:
        """Those that no line told of."""
        if self._open and state.completed and not state.files:
            raise EnvironmentFault(
                f"batch {self.batch.id}: {state.completed} of its requests are answered and their "
                "results can't be had (archived?); they were paid: start a new run, which pays anew"
            )
        nameless = None in self._unreadable
        told = []
        for ask in self._open.values():
            if nameless or ask.custom_id in self._unreadable:
                self.counts["unreadable"] += 1
                told.append((ask, Verdict(kind="fatal", reason="its line of results can't be read; it was paid")))
            else:
                self.counts["missing"] += 1
                told.append(
                    (ask, Verdict(kind="retry", reason=f"no line in the results ({state.state})", billed=False))
                )
        self._open = {}
        await self._settle(told)


def account(provider: str, reason: str) -> EnvironmentFault:
    """The error of an account that can't pay or may not ask."""
    return EnvironmentFault(
        f"{provider}: {reason}; see to the account or the key, then run the same command again: "
        "everything answered is kept"
    )
