"""Ready: whether a job that asks a paid teacher begins although the cloned policy promises nothing.

    require_ready(config, row, root, stop=True)      # raises EmptyResult, with the cause and what helps

A pipeline and a chain stop there, unless told to go on anyway; a stage that somebody starts by hand warns.
"""

from __future__ import annotations

from pathlib import Path

from r2v.config import Config
from r2v.data.schema import from_dict
from r2v.errors import EmptyResult, InputError
from r2v.evaluation.readiness import Readiness
from r2v.log import logger
from r2v.pipeline.graph import as_configured, upstream
from r2v.pipeline.inputs import place_of
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.rows import Job
from r2v.storage.artifact_manifest import read_artifact_manifest


def require_ready(config: Config, row: Job, root: Path, *, stop: bool) -> None:
    """Warn where this job is paid and rests on a cloned policy that solves nothing and has not learnt what it was
    shown; with `stop`, and unless `anyway` says otherwise, raise EmptyResult."""
    if not _is_paid(config, row):
        return
    found = published_readiness(config, root)
    if found is None or not found.hopeless:
        return
    if config.anyway or not stop:
        logger.warning("  %s is paid although %s", row.name, found)
        return
    raise EmptyResult(
        f"{row.name} and what follows ask {config.teacher.model_name}, and {found}; nothing more was asked: train "
        "again, or go on all the same with --anyway"
    )


def published_readiness(config: Config, root: Path = Path()) -> Readiness | None:
    """What the published clone says of itself; None where there is none, or an earlier R2V made it."""
    place = place_of(config, "bc", root)
    try:
        told = read_artifact_manifest(place.resolve()).summary.get("readiness")
        return None if told is None else from_dict(Readiness, told)
    except (InputError, ValueError):
        return None


def _is_paid(config: Config, row: Job) -> bool:
    rows = [as_configured(config, one) for one in JOBS]
    if config.teacher.provider == "scripted" or row.name == "bc" or "bc" not in upstream([row.name], rows):
        return False
    sections = row.load().sections(config)
    return hasattr(sections, "teacher") and getattr(sections, "asks_teacher", True)
