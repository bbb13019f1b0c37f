"""Looks at Slurm: one question about all runs of an experiment that are in its queue, answered to each of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from r2v.log import logger

if TYPE_CHECKING:
    from r2v.slurm.client import Queued
    from r2v.slurm.views.status import ChainStatus


@dataclass(kw_only=True)
class SlurmLooks:
    """What Slurm says of an experiment's runs, asked once for all of them and not more often than `every` seconds."""

    every: float = 10.0
    chains: set[str] = field(default_factory=set)
    """The chains that are asked about."""
    number: int = 0
    rows: Mapping[str, Queued] = field(default_factory=dict)
    statuses: Mapping[str, ChainStatus] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    """By chain: the exit code that its last failed job wrote of itself."""
    _at: float = float("-inf")

    def since(self, number: int) -> bool:
        """Whether there is a look that came after this one; asks, where it is time. Where nobody answers there is
        none."""
        if time.monotonic() - self._at >= self.every:
            self._ask()
            self._at = time.monotonic()
        return self.number > number

    def _ask(self) -> None:
        from r2v.slurm import chain as chains
        from r2v.slurm.views import status

        known = [name for name in sorted(self.chains) if name in chains.names()]
        inputs = status.gather_inputs(known)
        if inputs.slurm.queue is None:
            logger.warning("%s; asked again", inputs.slurm.queue_down)
            return
        self.rows = inputs.slurm.queue
        self.statuses = {one.name: one for one in status.statuses(inputs)}
        exits = {name: [one.exit for one in inputs.records[name].values() if one.exit] for name in known}
        self.codes = {
            name: next((one["rc"] for one in reversed(found) if one.get("rc")), 1) for name, found in exits.items()
        }
        self.number += 1
