"""Rows of the table of stages: what is to be said of a command and of a job.

The table itself is `r2v.pipeline.jobs`. Nothing heavy is imported: `r2v --help` reads it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.stages import Stage

CONDITION = "CONDITION"
"""The positional argument of an sbatch line that picks configs/<benchmark>/<condition>.yaml; noisy where left out."""

JOIN = ("--overrides", "rollout.helpers=join")
"""Words behind a stage's command line that make it a helper (`r2v.pipeline.helping`)."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option that is another spelling of a configuration key: `--names no_dpo` is `--overrides
    ablations.names=[no_dpo]`."""

    name: str
    key: str
    help: str
    """What it means, its unit and its default (a test holds the default against the configuration's)."""
    metavar: str
    """What its value is called."""
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class FileInput:
    """An option that names a file to read in place of a job's published artifact."""

    name: str
    job: str
    help: str


@dataclass(frozen=True, kw_only=True)
class Instead:
    """An option with which the command does something else and prints what that says."""

    name: str
    call: str
    """Dotted path module:function of (Config) -> str."""
    help: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of the pipeline, for `r2v` and for sbatch."""

    name: str
    help: str
    script: str
    """The file in scripts/slurm/ that runs it; its #SBATCH header says what the job asks of the cluster."""
    flags: tuple[Flag, ...] = ()
    positionals: tuple[str, ...] = (CONDITION,)
    """What the words after BENCHMARK mean on an sbatch line: CONDITION, or an option of this command."""
    config: str | None = None
    """The configuration that its script takes where neither --config nor a BENCHMARK is named."""
    file_inputs: tuple[FileInput, ...] = ()
    instead: tuple[Instead, ...] = ()
    phased: bool = False
    """Whether it makes several jobs, of which `--stage` picks one."""
    output: bool = False
    """True if it takes --output, a place of the result's own."""
    helped: bool = False
    """True if it takes helpers (`rollout.helpers`): its stage has a `Stage.play`."""
    resumable: bool = False
    """Whether `--resume CHECKPOINT` alone goes on with an interrupted attempt."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row of the table. `needs` are the jobs it waits for, `inputs` those whose artifacts it reads."""

    name: str
    number: str
    command: Command
    stage: str
    """Dotted path module:attribute of the Stage."""
    place: str | None
    """Where the artifact is published, as a template of `Places.published`; None: runs of data, which the registry
    names, and every command makes a new one."""
    outputs: tuple[str, ...]
    """What the artifact always holds: files, or folders with files."""
    needs: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    """Inputs that are done whenever `needs` are, so that no waiting is owed to them."""
    enabled: Callable[[Config], bool] = lambda config: True
    """Whether it is part of a configuration's chain."""
    tells_readiness: bool = False
    """True if paid jobs that rest on it look at the readiness in its summary first (`r2v.pipeline.ready`)."""
    optional: bool = False
    """True if jobs that read it run without it where it is not enabled."""
    uses_inputs: Callable[[Config], bool] = lambda config: True
    """Whether it reads anything of the chain at all."""
    task_counts: tuple[tuple[str, str], ...] = ()
    """The configuration keys that say how many tasks it plays at most, each with the split that they are of."""
    parts: str = ""
    """Dotted path module:function of (Case) -> parts, which counts what it plays, asks and trains
    (`r2v.pipeline.plan.case`); "" for one that does none of these."""
    memory: str = ""
    """Dotted path module:function of the code that runs one micro-batch of its own on fixed shapes, by which the memory
    planner measures it; "": it holds no local model."""
    usual_share: float = 1.0
    """Of the questions to the LLM that `parts` counts, the share that is asked, as on desk: the others equal earlier
    ones, or a search ends before them, or a threshold keeps them. A guess, where no run here says more."""
    spreads: bool = False
    """Whether it can use several nodes: its ranks train together."""
    remakes: str = ""
    """The job up to which it makes the chain again under each configuration of `Stage.chains`."""
    imputed: tuple[str, ...] | None = None
    """What it reads where the router's labels are imputed (router.label=imputed); None: it executes something, and is
    then no part of the chain."""
    imputed_parts: str = ""
    """`parts` where these labels are of a small model behind an API."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the jobs whose artifacts this one reads."""
        return self.needs + self.also_reads

    @property
    def shown(self) -> bool:
        """Whether the report shows its result, so that it is made again once this has ended."""
        return (self.place or "").startswith("results/")

    @property
    def argv(self) -> tuple[str, ...]:
        """The words after `r2v` that make this job alone."""
        return (self.command.name, "--stage", self.name) if self.command.phased else (self.command.name,)

    def load(self) -> Stage:
        """The stage itself. Cheap: stage modules import nothing heavy at the top."""
        return cast("Stage", named(self.stage))


def named(path: str) -> Any:
    """What a row names as module:attribute."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
