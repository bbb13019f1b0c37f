"""Players: how many processes play an attempt's blocks, which each of them goes by when it takes more.

    with Players(cache.folder) as players:
        players.count()         # this process, and the others that live

Each holds a lease of its own in the attempt's folder while it plays; that of a dead one is taken away by whoever counts
next.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from r2v.errors import LeaseConflict
from r2v.storage.lease import holder, lease

_STEM = "player-"


class Players:
    """The processes that play in a folder, this one among them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = folder / f"{_STEM}{secrets.token_hex(4)}.lease"
        self._holding = ExitStack()

    def count(self) -> int:
        """How many there are."""
        return 1 + sum(_lives(path) for path in self._folder.glob(f"{_STEM}*.lease") if path != self._own)

    def __enter__(self) -> Players:
        self._holding.enter_context(lease(self._own))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(LeaseConflict):  # a count and no right: whoever thought this process dead was wrong
            self._holding.close()


def _lives(path: Path) -> bool:
    """Whether somebody holds a lease, which is taken away where nobody does."""
    if holder(path) is not None:
        return True
    with suppress(LeaseConflict), lease(path):
        pass
    return False
