"""Ready: no paid job begins on a cloned policy that promises nothing, unless it is told to.

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
    found = next(filter(None, (_told(config, one, root) for one in _rests_on(config, row))), None)
    if found is None or not found.hopeless:
        return
    if config.anyway or not stop:
        logger.warning("  %s is paid although %s", row.name, found)
        return
    raise EmptyResult(
        f"{row.name} and what follows ask {config.teacher.model_name}, and {found}; nothing more was asked: train "
        "again, or go on all the same with --anyway"
    )


def _told(config: Config, name: str, root: Path) -> Readiness | None:
    """The readiness of a published policy; None where there is none, or an earlier R2V made it."""
    place = place_of(config, name, root)
    try:
        told = read_artifact_manifest(place.resolve()).summary.get("readiness")
        return None if told is None else from_dict(Readiness, told)
    except (InputError, ValueError):
        return None


def _rests_on(config: Config, row: Job) -> list[str]:
    """The jobs before this one that say whether it is worth its money."""
    before = upstream([row.name], [as_configured(config, one) for one in JOBS]) - {row.name}
    return [one.name for one in JOBS if one.tells_readiness and one.name in before]


def _is_paid(config: Config, row: Job) -> bool:
    if config.teacher.provider == "scripted":
        return False
    sections = row.load().sections(config)
    return hasattr(sections, "teacher") and getattr(sections, "asks_teacher", True)
