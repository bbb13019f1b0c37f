"""Row types of the table of stages (`r2v.pipeline.jobs`): commands and jobs.

Nothing heavy is imported: `r2v --help` reads the table.
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
"""Positional argument of an sbatch line that picks configs/<benchmark>/<condition>.yaml; default noisy."""

JOIN = ("--overrides", "rollout.helpers=join")
"""Arguments that turn a stage's command into a helper (`r2v.pipeline.helping`)."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option that sets a configuration key: `--names no_dpo` is `--overrides ablations.names=[no_dpo]`."""

    name: str
    key: str
    help: str
    """Meaning, unit and default; a test compares the default with the configuration's."""
    metavar: str
    many: bool = False


@dataclass(frozen=True, kw_only=True)
class FileInput:
    """An option that replaces a job's published artifact by a file."""

    name: str
    job: str
    help: str


@dataclass(frozen=True, kw_only=True)
class Instead:
    """An option that replaces the command by another function, whose text is printed."""

    name: str
    call: str
    """Dotted path module:function of (Config) -> str."""
    help: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of the pipeline, for `r2v` and for sbatch."""

    name: str
    help: str
    script: str
    """File in scripts/slurm/ that runs it; its #SBATCH header has the job's resources."""
    flags: tuple[Flag, ...] = ()
    positionals: tuple[str, ...] = (CONDITION,)
    """Meaning of the arguments after BENCHMARK on an sbatch line: CONDITION, or an option of this command."""
    config: str | None = None
    """Configuration of its script where neither --config nor a BENCHMARK is given."""
    file_inputs: tuple[FileInput, ...] = ()
    instead: tuple[Instead, ...] = ()
    phased: bool = False
    """True if it makes several jobs, of which `--stage` picks one."""
    output: bool = False
    """True if it takes --output, another path of the result."""
    helped: bool = False
    """True if it takes helpers (`rollout.helpers`): its stage has a `Stage.play`."""
    resumable: bool = False
    """True if `--resume CHECKPOINT` alone continues an interrupted attempt."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A row of the table. `needs` are the jobs it waits for, `inputs` those whose artifacts it reads."""

    name: str
    number: str
    command: Command
    stage: str
    """Dotted path module:attribute of the Stage."""
    place: str | None
    """Path of the published artifact, a template of `Places.published`; None for runs of data, which the registry
    names and of which every command makes a new one."""
    outputs: tuple[str, ...]
    """Files, or folders with files, that every artifact of the job holds."""
    needs: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    """Inputs that are done whenever `needs` are, so that the job need not wait for them."""
    enabled: Callable[[Config], bool] = lambda config: True
    """True for a configuration whose chain has the job."""
    optional: bool = False
    """True if jobs that read it run without it where it is not enabled."""
    uses_inputs: Callable[[Config], bool] = lambda config: True
    """True for a configuration under which it reads any input."""
    task_counts: tuple[tuple[str, str], ...] = ()
    """(configuration key of the most tasks that it plays, their split) of each limit."""
    parts: str = ""
    """Dotted path module:function of (PlanInputs) -> parts, which counts the job's work for a plan
    (`r2v.pipeline.plan.plan_inputs`); "" for a job that plays, asks and trains nothing."""
    memory: str = ""
    """Dotted path module:function that runs one micro-batch of the job on fixed shapes, for the memory planner; "" for
    a job without a local model."""
    usual_share: float = 1.0
    """Share of the LLM requests counted by `parts` that is sent, as on desk: the others repeat earlier ones, follow the
    end of a search, or stay below a threshold. A guess, used where no earlier run has measured it."""
    spreads: bool = False
    """True if it can use several nodes: its ranks train together."""
    remakes: str = ""
    """Job up to which it makes the chain again under each configuration of `Stage.chains`."""
    imputed: tuple[str, ...] | None = None
    """Inputs with router.label=imputed; None for a job that executes something, which the chain then skips."""
    imputed_parts: str = ""
    """`parts` with imputed labels of a small model behind an API."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the jobs whose artifacts it reads."""
        return self.needs + self.also_reads

    @property
    def shown(self) -> bool:
        """True if the report shows its result and is made again after it."""
        return (self.place or "").startswith("results/")

    @property
    def argv(self) -> tuple[str, ...]:
        """Arguments of `r2v` that make this job alone."""
        return (self.command.name, "--stage", self.name) if self.command.phased else (self.command.name,)

    def load(self) -> Stage:
        """Return the stage. Cheap: stage modules import nothing heavy at the top."""
        return cast("Stage", named(self.stage))


def named(path: str) -> Any:
    """Return the object that a row names as module:attribute."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
