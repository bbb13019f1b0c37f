"""Ready: no paid job begins without a cap, or on a cloned policy that promises nothing, unless it is told to.

    require_cap(config, rows, root)                  # raises UsageError, with the bound of what they cost
    require_ready(config, row, root, stop=True)      # raises EmptyResult, with the cause and what helps

A pipeline and a chain stop at a hopeless policy, unless told to go on anyway; a stage that somebody starts by hand
warns. A cap is asked for by whoever sits before the terminal, and never in a job, which has waited for its turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from r2v.config import Config, TeacherConfig
from r2v.config.models import LOOPBACK
from r2v.data.schema import from_dict
from r2v.errors import EmptyResult, InputError, R2VError, UsageError
from r2v.evaluation.acting.readiness import Readiness
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.llm.providers.teacher import teacher_rate
from r2v.log import logger
from r2v.pipeline.graph import as_configured, upstream
from r2v.pipeline.inputs import place_of, require_world
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.plan.collection_plan import collection_line
from r2v.pipeline.plan.dry_run import planned_jobs
from r2v.pipeline.plan.known import known_here
from r2v.pipeline.plan.price import endpoints
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.rows import Job
from r2v.storage.artifact_manifest import read_artifact_manifest


def require_ready(config: Config, row: Job, root: Path, *, stop: bool) -> None:
    """Warn where this job is paid and rests on a cloned policy that solves nothing and has not learnt what it was
    shown; with `stop`, and unless `anyway` says otherwise, raise EmptyResult. Log both plans of a paid collection."""
    if not _is_paid(config, row):
        return
    if line := collection_line(row, config, known_here(config, root)):
        logger.info("  %s", line)
    found = next(filter(None, (_told(config, one, root) for one in _rests_on(config, row))), None)
    if found is None or not found.hopeless:
        return
    if config.anyway or not stop:
        logger.warning("  %s is paid although %s", row.name, found)
        return
    raise EmptyResult(
        f"{row.name} and what follows ask {config.teacher.model_name}, and {found}; nothing more was asked: train "
        "again, or go on all the same with --overrides anyway=true"
    )


def require_cap(config: Config, rows: Sequence[Job], root: Path) -> None:
    """Raise UsageError where a job asks a provider that charges for it, and neither the pipeline nor the project has a
    cap. It names what the jobs cost at most."""
    paid = [row for row in rows if _is_paid(config, row)]
    if not paid or not is_uncapped(config.teacher, endpoints(config), root):
        return
    for row in paid:
        require_world(row.load().sections(config))  # a missing key is told before a missing cap
    what = f"{', '.join(row.name for row in paid)} would be billed"
    price, given = _bound(config, paid, root)
    raise UsageError(
        f"teacher.max_usd is not set, and {what}: {price}; add a cap, such as teacher.max_usd={given:g}. Where it is "
        "reached everything stops and is kept, and goes on when it is raised"
    )


def is_uncapped(teacher: TeacherConfig, asked: Sequence[TeacherConfig], root: Path) -> bool:
    """True if a model that is asked charges, and neither the pipeline nor the project has a cap. A server that a
    configuration names on this machine is used without one, after a warning: its prices are the user's own, for
    comparison. A gateway elsewhere may be billed."""
    if teacher.max_usd is not None or teacher.project_max_usd is not None:
        return False
    urls = [one.base_url or "" for one in asked if charges(one)]
    if not urls or ProjectLedger(root).cap is not None:
        return False
    if all(urlsplit(url).hostname in LOOPBACK for url in urls):
        logger.warning("spending at %s has no cap: teacher.max_usd is not set", " and ".join(dict.fromkeys(urls)))
        return False
    return True


def _bound(config: Config, rows: Sequence[Job], root: Path) -> tuple[str, float]:
    """Likely and greatest cost of these jobs, in words, and a cap to suggest."""
    try:
        jobs = planned_jobs(config, known_here(config, root), {row.name: Allotted() for row in rows}, root)
    except (R2VError, OSError, ValueError):
        return "--dry-run may tell how much", _SOME_USD
    bounds = [one.usd for one in jobs if one.usd is not None]
    if len(bounds) < len(jobs) or math.isnan(sum(bounds)):
        return "nobody can tell how much", _SOME_USD
    likely = [one.likely.usd for one in jobs if one.likely is not None]
    told = f"likely ${sum(likely):,.2f}, " if likely else ""
    return f"{told}at most ${sum(bounds):,.2f}", max(1.0, math.ceil(sum(bounds)))


def charges(asked: TeacherConfig) -> bool:
    """False of a model whose tokens are known to be free, such as one on a server of one's own."""
    try:
        rate = teacher_rate(asked)
    except UsageError:
        return False  # it is refused for that, in words of its own
    return rate.input > 0 or rate.output > 0


_SOME_USD = 20.0
"""A cap to begin with, where nobody can tell what a run costs."""


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
    sections = row.load().sections(config)
    if config.policy.is_api and hasattr(sections, "inference"):
        return True
    asks = hasattr(sections, "teacher") and getattr(sections, "asks_teacher", True)
    return config.teacher.provider != "scripted" and asks
