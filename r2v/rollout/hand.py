"""The hand of a process: the blocks that it holds and the plays of them that have not ended.

    with Hand(cache) as hand:
        if hand.take("evaluation-0007", path):      # False: another process holds it
            hand.hold("evaluation-0007", keys)
            ...
            hand.end("evaluation-0007", key)        # the last one's end gives the block back

Whatever ends the run gives all of them back, once the disk has what was played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from r2v.errors import LeaseConflict
from r2v.llm.waves import Waves
from r2v.rollout.episode_cache import EpisodeCache
from r2v.storage.lease import lease


class Hand:
    """Blocks in hand, by name. Their plays lie in `cache`."""

    def __init__(self, cache: EpisodeCache) -> None:
        self._cache = cache
        self._leases: dict[str, ExitStack] = {}
        self._open: dict[str, set[str]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def plays(self) -> int:
        """Plays in hand that have not ended."""
        return sum(len(keys) for keys in self._open.values())

    def take(self, block: str, path: Path) -> bool:
        """Hold the lease of a block; False where another process does."""
        holding = ExitStack()
        try:
            holding.enter_context(lease(path))
        except LeaseConflict:
            return False
        self._leases[block] = holding
        return True

    def hold(self, block: str, keys: Iterable[str]) -> None:
        """Note what is to be played of a block that was taken; where that is nothing, it is given back."""
        self._open[block] = set(keys)
        self._give_back_played(block)

    def end(self, block: str, key: str) -> None:
        """Note that a play was kept."""
        self._open[block].discard(key)
        self._give_back_played(block)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, waves: Waves) -> None:
        """Until a play in hand ends."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await waves.wait(future)

    def _give_back_played(self, block: str) -> None:
        if not self._open[block]:
            self._cache.close(block)
            del self._open[block]
            self._leases.pop(block).close()

    def __enter__(self) -> Hand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as all_of_them:
            for holding in self._leases.values():
                all_of_them.push(holding)
            self._leases = {}
            self._cache.close()
