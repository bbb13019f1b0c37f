"""Pipeline stages: thin steps from artifacts to an artifact, one file each, over the packages of lower layers.

A stage is a value: `Stage(version, settings, run)`. `settings` is a dataclass whose fields are the configuration
sections that the stage reads, all that it depends on, and so its fingerprint. A stage that reads part of a section
picks it in a classmethod `of(config)` (`r2v.config.sections_of`); one that cannot run under every configuration refuses
it in `require_possible()`. That is called before any stage of a run begins, as are the checks of a training `phase`.
`run(settings, work)` reads `work.inputs`, writes into `work.folder` and puts its figures into `work.summary`.
Stage modules import nothing heavy at the top: planning and status load them on login nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2v.config import Config, load, sections_of
from r2v.distributed import own_device
from r2v.storage.artifact import Work, attempt_of
from r2v.storage.integrity import CONFIGURATION


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline. Raise `version` when the same inputs give another content."""

    version: int
    settings: type[Any]
    run: Callable[[Any, Work], None]
    chains: Callable[[Config], Sequence[Config]] = lambda config: ()
    """Configurations whose chains, up to their evaluation, the stage makes as parts of itself, for a plan."""
    play: Callable[[Any, Work], Any] | None = None
    """Of a stage that takes helpers: `play(settings, work)` plays `run`'s episodes and leaves `work.folder` alone."""

    def sections(self, config: Config) -> Any:
        """Return the stage's settings: the sections, or parts of them, that it reads of a configuration."""
        if hasattr(self.settings, "of"):
            return self.settings.of(config)
        return sections_of(self.settings, config)


def attempt_of_rank(folder: Path) -> tuple[str, Config, Work]:
    """Return job, configuration (on this rank's device) and work of an attempt that this process trains as a rank."""
    job, inputs = attempt_of(folder)
    config = load(folder / CONFIGURATION)
    config = replace(config, policy=replace(config.policy, device=own_device(config.policy.device)))
    return job, config, Work(folder=folder, fingerprint="", inputs=inputs, root=Path())
