"""Point: what one run of an experiment over the pipeline does: its stage, and whatever that needs and nobody has made.

Artifacts are found by fingerprint, so what the points have in common is made once, by the first that comes to it; a
second one at the same time waits for it, or plays its blocks (`r2v.experiments.shared_chains`). Nothing is published:
points would take turns at the places of the pipeline's results.
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
"""The artifact of each job that a run is made of."""


def config_of(tree: dict[str, Any]) -> Config:
    """The configuration that a tree is, as YAML was read. Raises UsageError as reading a file would."""
    from r2v.config import WITHOUT_FILE
    from r2v.memory.profile_of_model import configured

    try:
        return configured(tree)
    except UsageError as error:
        raise UsageError(str(error).removeprefix(f"{WITHOUT_FILE}: ")) from None


def jobs_of(stage: str, config: Config) -> tuple[str, ...]:
    """The jobs that a point of this stage is for, the last of the chain last."""
    (command,) = (row for row in COMMANDS if row.name == stage)
    enabled = {row.name for row in selection(config)[0]}
    return tuple(name for name in possible(config, made_by(command)) if name in enabled)


def require_runnable(stage: str | None, config: Config) -> None:
    """Raises UsageError where a point of this configuration could not be run; `stage` None: a simulation."""
    if stage is not None:
        rows = selection(config)[0]
        wanted = upstream(jobs_of(stage, config), rows)
        needed = [row for row in rows if row.name in wanted]
        require_chain(config, needed)
        require_cap(config, needed, Path())


def run_point(config_path: Path, folder: Path, stage: str) -> None:
    """Make a point's artifacts and leave its figures in its folder. Raises what the stages raise."""
    from r2v.config import load
    from r2v.experiments.shared_chains import make_chains

    config = load(config_path)
    until = jobs_of(stage, config)
    leave_figures(config, folder, until, make_chains({"": config}, until=until, quiet=False)[""])


def leave_figures(config: Config, folder: Path, until: Sequence[str], made: Mapping[str, Artifact]) -> None:
    """Write what a point's artifacts came to into its folder."""
    last = [row.name for row in JOBS if row.name in until][-1]
    write_json(folder / ARTIFACTS_FILE, {job: f"{job}-{artifact.fingerprint}" for job, artifact in made.items()})
    write_json(folder / METRICS, figures_of(last, made[last]))
    if last == "evaluate":
        write_text(folder / OUTCOMES, outcomes_text(config, made[last]))


def figures_of(job: str, artifact: Artifact) -> dict[str, Any]:
    """The figures of an artifact: of an evaluation, <method>/<condition>/<column of main_table.csv>; of any other, the
    numbers of its summary."""
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
    """Whether each task was solved, by the first method of OURS or else the first one, under each condition."""
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
