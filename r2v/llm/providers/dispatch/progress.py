"""Progress of a provider's run: progress.json with one JSON object, and a log line every half minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import WallClock
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger
from r2v.progress import show_spent
from r2v.storage.files import write_json

_EVERY = 30.0
"""Seconds between two reports."""


class ProviderProgress:
    """Figures of one run; its pace is measured from the start of this process."""

    def __init__(self, folder: Path, provider: str, tracker: SpendTracker, clock: WallClock) -> None:
        self._path, self._provider = folder / "progress.json", provider
        self._tracker, self._clock = tracker, clock
        self._began = self._last_report = clock.now()
        self._answered_before = tracker.state.counts["answered"]

    def begin(self, in_flight: int) -> None:
        """Log the answers and requests in flight of an earlier process, if any."""
        if answers := len(self._tracker.state.answers):
            logger.info("  journal resumed: answers=%d in_flight=%d", answers, in_flight)

    def show(self) -> None:
        """Show the amount spent next to the stage's progress."""
        show_spent(self._path, self._tracker.state.spent)

    def end(self) -> None:
        """Remove the amount spent from the stage's progress."""
        show_spent(self._path, None)

    @property
    def due(self) -> bool:
        """True if the next report is due."""
        return self._clock.now() - self._last_report >= _EVERY

    def figures(self, queued: int, unanswered: int) -> dict[str, Any]:
        """Return counts of requests, the age of the oldest batch in seconds, money in USD, the share of prompt tokens
        read from the provider's cache, and the estimated seconds left (None: unknown). queued: requests in no batch
        yet; unanswered: all requests without an answer."""
        state, now = self._tracker.state, self._clock.now()
        done = state.counts["answered"] - self._answered_before
        pace = done / (now - self._began) if now > self._began else 0.0
        return {
            "provider": self._provider,
            "queued": queued,
            "in_batches": sum(len(batch.requests.keys() - batch.accounted) for batch in state.batches.values()),
            "batches": len(state.batches),
            "calls": len(state.calls),
            "answered": state.counts["answered"],
            "retried": state.counts["retry"],
            "refused": state.counts["fatal"],
            "lost": state.counts["lost"],
            "oldest_batch_seconds": round(max((now - b.began for b in state.batches.values()), default=0.0), 1),
            "usd": round(state.spent, 6),
            "usd_maybe": round(state.lost_usd, 6),
            "usd_cap": self._tracker.budget.cap,
            "cached_share": round(state.cached_tokens / state.prompt_tokens, 4) if state.prompt_tokens else None,
            "eta_seconds": round(unanswered / pace, 1) if pace else None,
        }

    def report(self, figures: dict[str, Any]) -> None:
        """Write figures to the file and to the log. A refused write is only logged, because the journal has them
        all."""
        self._last_report = self._clock.now()
        try:
            write_json(self._path, figures)
        except EnvironmentFault as error:
            logger.warning("  progress not written: error=%s", error)
        cap = "" if figures["usd_cap"] is None else f"/${figures['usd_cap']:.2f}"
        lost = f" lost={figures['lost']} lost_at_most=${figures['usd_maybe']:.4f}" if figures["lost"] else ""
        cached = f" cached_prompt={figures['cached_share']:.0%}" if figures["cached_share"] else ""
        logger.info(
            "  requests: provider=%s model=%s answered=%d refused=%d retried=%d in_flight=%d batches=%d calls=%d "
            "cost=$%.4f%s%s%s",
            figures["provider"],
            self._tracker.rate.model,
            figures["answered"],
            figures["refused"],
            figures["retried"],
            figures["in_batches"] + figures["calls"],
            figures["batches"],
            figures["calls"],
            figures["usd"],
            cap,
            lost,
            cached,
        )
