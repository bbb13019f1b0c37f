"""How far a provider's run is: one JSON object in progress.json, and now and then a line on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r2v.llm.providers.dispatch.reconcile import Times
from r2v.llm.providers.spending.budget import Till
from r2v.log import logger
from r2v.storage.files import write_json

_EVERY = 30.0
"""Seconds between two lines."""


class Progress:
    """Figures of one run, from when this process took it up."""

    def __init__(self, folder: Path, provider: str, till: Till, times: Times) -> None:
        self._path, self._provider, self._till, self._times = folder / "progress.json", provider, till, times
        self._began = self._told = times.now()
        self._before = till.book.counts["answered"]

    @property
    def due(self) -> bool:
        """It is time for another line."""
        return self._times.now() - self._told >= _EVERY

    def figures(self, queued: int, under_way: int) -> dict[str, Any]:
        """Counts of questions, the oldest batch (seconds), money in USD, the share of prompt tokens that came from the
        provider's cache, and the seconds left at the pace so far (None: not known). queued: in no batch yet;
        under_way: not answered, wherever they are."""
        book, now = self._till.book, self._times.now()
        done = book.counts["answered"] - self._before
        pace = done / (now - self._began) if now > self._began else 0.0
        return {
            "provider": self._provider,
            "queued": queued,
            "in_batches": sum(len(batch.asks.keys() - batch.settled) for batch in book.batches.values()),
            "batches": len(book.batches),
            "calls": len(book.calls),
            "answered": book.counts["answered"],
            "retried": book.counts["retry"],
            "refused": book.counts["fatal"],
            "lost": book.counts["lost"],
            "oldest_batch_seconds": round(max((now - b.began for b in book.batches.values()), default=0.0), 1),
            "usd": round(book.spent, 6),
            "usd_maybe": round(book.lost_usd, 6),
            "usd_cap": self._till.purse.cap,
            "cached_share": round(book.cached_tokens / book.prompt_tokens, 4) if book.prompt_tokens else None,
            "eta_seconds": round(under_way / pace, 1) if pace else None,
        }

    def tell(self, told: dict[str, Any]) -> None:
        """Leave these figures in the file and on the screen."""
        self._told = self._times.now()
        write_json(self._path, told)
        cap = "" if told["usd_cap"] is None else f" of ${told['usd_cap']:.2f}"
        maybe = (
            f", at most ${told['usd_maybe']:.4f} more for {told['lost']} calls whose answers were lost"
            if told["lost"]
            else ""
        )
        cached = f"; {told['cached_share']:.0%} of the prompts from the cache" if told["cached_share"] else ""
        logger.info(
            "  %s: %d answered, %d refused, %d retried, %d under way in %d batches and %d calls; $%.4f%s%s%s",
            told["provider"],
            told["answered"],
            told["refused"],
            told["retried"],
            told["in_batches"] + told["calls"],
            told["batches"],
            told["calls"],
            told["usd"],
            cap,
            maybe,
            cached,
        )
