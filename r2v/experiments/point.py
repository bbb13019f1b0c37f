"""Point: one run of an experiment over the pipeline, a stage and its unfinished inputs.

Artifacts are found by fingerprint, so artifacts shared by several points are made once, by the first point; another
one at the same time waits for it or plays its blocks (`r2v.experiments.shared_chains`). Nothing is published, since
points would overwrite each other's published paths.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.errors import UsageError
from r2v.experiments.metrics import METRICS, OUTCOMES
from r2v.pipeline.graph import made_by, possible, selection, upstream
from r2v.pipeline.inputs import require_chain
from r2v.pipeline.jobs import COMMANDS, JOBS
from r2v.pipeline.ready import require_cap
from r2v.storage.files import write_json, write_text

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.storage.integrity import Artifact

ARTIFACTS_FILE = "artifacts.json"
"""File of a run: job -> name of its artifact."""


def config_of(tree: dict[str, Any]) -> Config:
    """Return the configuration of a tree read from YAML. Raise UsageError as for a file."""
    from r2v.config import WITHOUT_FILE
    from r2v.memory.profile_of_model import configured

    try:
        return configured(tree)
    except UsageError as error:
        raise UsageError(str(error).removeprefix(f"{WITHOUT_FILE}: ")) from None


def jobs_of(stage: str, config: Config) -> tuple[str, ...]:
    """Return the jobs that a point of this stage makes, in the order of the chain."""
    (command,) = (row for row in COMMANDS if row.name == stage)
    enabled = {row.name for row in selection(config)[0]}
    return tuple(name for name in possible(config, made_by(command)) if name in enabled)


def require_runnable(stage: str | None, config: Config) -> None:
    """Raise UsageError if a point of this configuration cannot run; `stage` None: a simulation."""
    if stage is not None:
        rows = selection(config)[0]
        names = upstream(jobs_of(stage, config), rows)
        needed = [row for row in rows if row.name in names]
        require_chain(config, needed)
        require_cap(config, needed, Path())


def run_point(config_path: Path, folder: Path, stage: str) -> None:
    """Make a point's artifacts and write its figures into its folder. Raise the errors of its stages."""
    from r2v.config import load
    from r2v.experiments.shared_chains import make_chains

    config = load(config_path)
    until = jobs_of(stage, config)
    leave_figures(config, folder, until, make_chains({"": config}, until=until, quiet=False)[""])


def leave_figures(config: Config, folder: Path, until: Sequence[str], artifacts: Mapping[str, Artifact]) -> None:
    """Write the figures of a point's artifacts, by job, into its folder."""
    last = [row.name for row in JOBS if row.name in until][-1]
    write_json(folder / ARTIFACTS_FILE, {job: f"{job}-{artifact.fingerprint}" for job, artifact in artifacts.items()})
    write_json(folder / METRICS, figures_of(last, artifacts[last]))
    if last == "evaluate":
        write_text(folder / OUTCOMES, outcomes_text(config, artifacts[last]))


def figures_of(job: str, artifact: Artifact) -> dict[str, Any]:
    """Return the figures of an artifact: of an evaluation, <method>/<condition>/<column of main_table.csv>; of any
    other its summary."""
    if job != "evaluate":
        return dict(artifact.summary)
    figures: dict[str, Any] = {}
    text = artifact.file("structured_results/main_table.csv").read_text()
    for row in csv.DictReader(io.StringIO(text)):
        for column, value in row.items():
            if (number := _number(value)) is not None:
                figures[f"{row['method']}/{row['condition']}/{column}"] = number
    return figures


def outcomes_text(config: Config, artifact: Artifact) -> str:
    """Return outcomes.csv: for each condition and task, 1 if solved by OURS, or else by the first method."""
    from r2v.config.methods import OURS
    from r2v.data.store import StoredEpisodes
    from r2v.evaluation.setup import episodes_path

    methods = config.evaluation.methods
    method = OURS if OURS in methods else methods[0]
    lines = ["unit,value"]
    for condition in config.evaluation.conditions:
        path = episodes_path(artifact.folder, condition, method)
        for episode in StoredEpisodes(artifact.file(path.relative_to(artifact.folder).as_posix())):
            if episode.env_fault is None:
                unit = f"{condition}/{episode.metadata.task_id}/s{episode.metadata.seed}"
                lines.append(f"{unit},{int(episode.success)}")
    return "\n".join(lines) + "\n"


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
