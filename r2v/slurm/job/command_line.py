"""The command line of a job: its configuration, the stages that it makes, and the check that they were made.

An exit code of 0 is not trusted without the artifacts. A job with several nodes whose stage uses one is refused, before
its submission and at its start.
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
"""The command that runs the whole pipeline in one process."""


def config_of(words: Sequence[str]) -> Config:
    """Return the configuration of a command line's --config and --overrides. Raises UsageError if it is invalid."""
    return configured(config_file(words), _after(words, "--overrides"))


def config_file(words: Sequence[str]) -> str | None:
    """Return the file of a command line's --config; None without one."""
    return next(iter(_after(words, "--config")), None)


def places_of(words: Sequence[str], root: Path = Path()) -> Places:
    """Return the places where a command publishes. Raises UsageError as `configured` does."""
    return inputs.places_of(config_of(words), root)


def made_by(words: Sequence[str]) -> tuple[str, ...]:
    """Return the stages that a command makes. Raises UsageError for a command outside the pipeline."""
    name = words[0]
    if name == RUN:
        start = next(iter(_after(words, "--from")), None)
        rows, _ = graph.selection(config_of(words), start=start, without=_after(words, "--without"))
        return tuple(row.name for row in rows)
    phase = _after(words, "--stage")
    selected = tuple(phase) if phase and phase != ["all"] else graph.made_by(jobs.command(name))
    return graph.possible(config_of(words), selected)


def missing_output(words: Sequence[str], root: Path = Path()) -> str | None:
    """Return the first missing output of a command that exited with 0: a published artifact, a file in its manifest, or
    an output that its row guarantees; None if all exist. One with its own `--output` is not checked."""
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
    path = inputs.place_of(config, row.name, root)
    try:
        artifact = artifacts.read(path.resolve() if path.exists() else path)
    except InputError:
        if (own := _own_attempt(config, row, root)) is None:
            raise
        artifact = own
    for name in artifact.files:
        artifact.file(name)
    for name in row.outputs:
        if not (artifact.folder / name).exists():
            raise InputError(f"{path}: holds no {name}, which {row.name} always leaves; make it again with --force")


def _own_attempt(config: Config, row: Job, root: Path) -> Artifact | None:
    """Return the artifact of exactly this configuration if another has replaced it where both publish; else None."""
    with suppress(InputError):  # an input was replaced as well
        read = {name: inputs.published(config, name, root) for name in row.inputs}
        return inputs.made_already(config, row, inputs.fingerprint_of(config, row, read), root)
    return None


def require_nodes_used(name: str, script: str, directives: Mapping[str, str]) -> None:
    """Raise UsageError if a job's header requests nodes that would stay idle."""
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
    """Raise UsageError if this job has nodes that its command leaves idle."""
    if (nodes := node_count()) > 1 and not any(jobs.job(name).spreads for name in made_by(words)):
        raise UsageError(f"this job has {nodes} nodes: {_idle(made_by(words)[0])}")


def _idle(name: str) -> str:
    spread = ", ".join(row.name for row in jobs.JOBS if row.spreads)
    return (
        f"{name} works on one and the others would stand idle; set --nodes=1 --ntasks=1 in its header. What trains on "
        f"several: {spread}; what plays takes helpers (#R2V {name} --helpers=N)"
    )


def _after(words: Sequence[str], option: str) -> list[str]:
    """Return the values of an option, up to the next option."""
    if option not in words:
        return []
    rest = list(words)[list(words).index(option) + 1 :]
    end = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]
