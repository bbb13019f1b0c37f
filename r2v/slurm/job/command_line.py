"""The command line of a job, read: its configuration, the jobs that it makes, and whether they were made.

An exit code of 0 is not believed by itself. A job that asks for several nodes and can use one is refused, before it is
submitted and when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from r2v.config import Config
from r2v.data.registry import DataRegistry
from r2v.errors import InputError, UsageError
from r2v.memory.profile_of_model import configured
from r2v.pipeline import graph, inputs, jobs
from r2v.pipeline.rows import Job
from r2v.several_nodes import node_count
from r2v.storage import artifact as artifacts
from r2v.storage.integrity import Artifact
from r2v.storage.paths import Places

RUN = "run"
"""The command that makes the whole pipeline in one process."""


def config_of(words: Sequence[str]) -> Config:
    """The configuration that a command line names by --config and --overrides. Raises UsageError where it is none."""
    return configured(config_file(words), _after(words, "--overrides"))


def config_file(words: Sequence[str]) -> str | None:
    """The file that a command line names by --config."""
    return next(iter(_after(words, "--config")), None)


def places_of(words: Sequence[str], root: Path = Path()) -> Places:
    """The places where a command publishes. Raises UsageError as `configured` does."""
    return inputs.places_of(config_of(words), root)


def made_by(words: Sequence[str]) -> tuple[str, ...]:
    """The jobs that a command makes. Raises UsageError for a command that is none of the pipeline's."""
    name = words[0]
    if name == RUN:
        start = next(iter(_after(words, "--from")), None)
        return tuple(row.name for row in graph.selection(config_of(words), start=start, without=_without(words))[0])
    phase = _after(words, "--stage")
    wanted = tuple(phase) if phase and phase != ["all"] else graph.made_by(jobs.command(name))
    return graph.possible(config_of(words), wanted)


def missing_output(words: Sequence[str], root: Path = Path()) -> str | None:
    """The first thing that a command which ended with 0 has not left: a published artifact, a file that its manifest
    lists, or what its row says it always holds; None where all is there. One with an `--output` of its own is
    believed: its result is not where the pipeline looks."""
    if "--output" in words:
        return None
    config = config_of(words)
    try:
        for name in made_by(words):
            _require(config, jobs.job(name), root)
    except InputError as error:
        return str(error)
    return None


def _require(config: Config, row: Job, root: Path) -> None:
    if row.place is None:
        DataRegistry(inputs.places_of(config, root).data).latest_run(config.env.benchmark)
        return
    place = inputs.place_of(config, row.name, root)
    try:
        made = artifacts.read(place.resolve() if place.exists() else place)
    except InputError:
        if (own := _own_attempt(config, row, root)) is None:
            raise
        made = own
    for name in made.files:
        made.file(name)
    for name in row.outputs:
        if not (made.folder / name).exists():
            raise InputError(f"{place}: holds no {name}, which {row.name} always leaves; make it again with --force")


def _own_attempt(config: Config, row: Job, root: Path) -> Artifact | None:
    """Return the artifact of exactly this configuration, though another one of the same name is making its own at the
    place where both publish; None where there is none."""
    with suppress(InputError):
        read = {name: inputs.published(config, name, root) for name in row.inputs}
        return inputs.made_already(config, row, inputs.fingerprint_of(config, row, read), root)
    return None


def require_nodes_used(name: str, script: str, directives: Mapping[str, str]) -> None:
    """Raises UsageError where the header of a job asks for nodes that would stand idle."""
    nodes = int(directives.get("nodes", "1").partition("-")[0])
    if nodes < 2:
        return
    if not jobs.job(name).spreads:
        raise UsageError(f"{script} asks for {nodes} nodes: {_idle(name)}")
    tasks = int(directives.get("ntasks", str(nodes)))
    if tasks < nodes:
        raise UsageError(
            f"{script} asks for {nodes} nodes and {tasks} tasks, for which Slurm gives {tasks} nodes; set "
            f"--ntasks={nodes} and --ntasks-per-node=1 beside --nodes={nodes}"
        )


def require_allocation_used(words: Sequence[str]) -> None:
    """Raises UsageError where this job has nodes that its command leaves idle."""
    if (nodes := node_count()) > 1 and not any(jobs.job(name).spreads for name in made_by(words)):
        raise UsageError(f"this job has {nodes} nodes: {_idle(made_by(words)[0])}")


def _idle(name: str) -> str:
    spread = ", ".join(row.name for row in jobs.JOBS if row.spreads)
    return (
        f"{name} works on one and the others would stand idle; set --nodes=1 --ntasks=1 in its header. What trains on "
        f"several: {spread}; what plays takes helpers (#R2V {name} --helpers=N)"
    )


def _without(words: Sequence[str]) -> list[str]:
    return _after(words, "--without")


def _after(words: Sequence[str], option: str) -> list[str]:
    """The values that follow an option, up to the next one."""
    if option not in words:
        return []
    rest = list(words)[list(words).index(option) + 1 :]
    end = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]
