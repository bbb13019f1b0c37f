"""Pipeline stages: thin steps from artifacts to an artifact, one file each. What they do lives in the domains below.

A stage is a value: `Stage(version, settings, run)`. `settings` is a dataclass whose fields are the configuration
sections the stage reads (and nothing else it depends on), so it also decides the fingerprint. A stage that
reads only part of a section says so with a classmethod `of(config)` that picks it (`r2v.config.sections_of`); one that
cannot run under every configuration refuses it in `require_possible()`, which is asked before any stage of a run
begins. `run(settings, work)` reads `work.inputs`, writes into `work.folder` and puts its figures into `work.summary`.
Stage modules import nothing heavy at the top: planning and status load them on login nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.config import Config, sections_of
from r2v.storage.artifact import Work


def _no_chains(config: Config) -> Sequence[Config]:
    return ()


@dataclass(frozen=True)
class Stage:
    """One kind of step. Raise `version` when the same inputs would give another content."""

    version: int
    settings: type[Any]
    run: Callable[[Any, Work], None]
    chains: Callable[[Config], Sequence[Config]] = _no_chains
    """The configurations whose chains, up to their evaluation, it makes as parts of itself: what a plan counts."""
    play: Callable[[Any, Work], Any] | None = None
    """Of a stage whose episodes other processes may play: `play(settings, work)` plays all that `run` would and writes
    nothing into `work.folder`."""

    def sections(self, config: Config) -> Any:
        """The stage's own settings: the sections, or parts of sections, that it reads of the whole configuration."""
        if hasattr(self.settings, "of"):
            return self.settings.of(config)
        return sections_of(self.settings, config)
