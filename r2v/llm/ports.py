"""Ports: the queue of requests in front of one backend, and when it is to be emptied.

A port's backend answers wave by wave, or is remote and has many waves in flight. One that prepares its requests
(`Preparing`: a model that reads tokens) has that done in a thread beside, while it answers others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from r2v.llm.memo import Memo
from r2v.llm.types import Backend, Preparing, Remote

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass
class WaveCounts:
    """How the engine filled its waves."""

    waves: int = 0
    requests: int = 0
    remembered: int = 0


@dataclass
class Port(Generic[Q, A]):
    """The queue in front of one backend, which is a remote one or answers wave by wave."""

    backend: Backend[Q, A] | None
    remote: Remote[Q, A] | None
    max_batch: int
    max_age: float
    patience: float
    """How much longer (seconds) a wave waits that is less than a quarter full."""
    memo: Memo | None
    memo_key: Callable[[Q], Hashable] | None
    prepare: Callable[[Q], Q] | None
    """Makes a request ready for the backend; None where it takes requests as they are."""
    counts: WaveCounts = field(default_factory=WaveCounts)
    pending: list[tuple[Q, asyncio.Future[A], float]] = field(default_factory=list)
    """(request, where its answer goes, when it is due by the clock)"""
    busy: bool = False

    @classmethod
    def of(
        cls,
        backend: Backend[Q, A] | Remote[Q, A],
        memo: Memo | None,
        memo_key: Callable[[Q], Hashable] | None,
        *,
        max_age: float,
        patience: float,
    ) -> Port[Q, A]:
        """The port of a backend. A remote one has an age of its own, and waits for nobody."""
        remote = backend if isinstance(backend, Remote) else None
        return cls(
            backend=None if isinstance(backend, Remote) else backend,
            remote=remote,
            max_batch=backend.max_batch,
            max_age=max_age if remote is None else remote.max_age,
            patience=patience if remote is None else 0.0,
            memo=memo,
            memo_key=memo_key,
            prepare=backend.prepare if remote is None and isinstance(backend, Preparing) else None,
        )

    def is_due(self, now: float) -> bool:
        """Whether the oldest request has waited long enough."""
        narrow = 4 * len(self.pending) < self.max_batch
        return now >= self.pending[0][2] + (self.patience if narrow else 0.0)

    def delays(self, now: float) -> set[float]:
        """Seconds until it may be due."""
        return {self.pending[0][2] - now, self.pending[0][2] + self.patience - now}

    def take(self) -> list[tuple[Q, asyncio.Future[A], float]]:
        """The next wave."""
        wave, self.pending = self.pending[: self.max_batch], self.pending[self.max_batch :]
        self.counts.waves += 1
        self.counts.requests += len(wave)
        return wave
