"""Checks before paid jobs: a spending cap, and a cloned policy that is worth it.

    require_cap(config, rows, root)                  # raises UsageError, with the jobs' bound of dollars
    require_ready(config, row, root, stop=True)      # raises EmptyResult, with cause and remedy

A pipeline and a chain stop at a hopeless policy unless `anyway` is set; a single stage warns. The cap is required by
commands of a terminal, never inside a Slurm job, which has waited in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from r2v.config import Config, TeacherConfig
from r2v.config.models import LOOPBACK
from r2v.data.schema import from_dict
from r2v.errors import EmptyResult, InputError, UsageError
from r2v.evaluation.acting.readiness import Readiness
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.llm.providers.teacher import teacher_rate
from r2v.log import logger
from r2v.pipeline.graph import as_configured, upstream
from r2v.pipeline.inputs import asks_teacher, place_of, require_world
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.plan.benchmark_facts import facts_here
from r2v.pipeline.plan.collection_plan import collection_line
from r2v.pipeline.plan.dry_run import planned_here
from r2v.pipeline.plan.price import endpoints
from r2v.pipeline.rows import Job
from r2v.storage.artifact_manifest import read_artifact_manifest


def require_ready(config: Config, row: Job, root: Path, *, stop: bool) -> None:
    """Log both plans of a paid collection. Warn where this job is paid and reads a cloned policy that solves nothing
    and has not learnt its training data; with `stop`, and without `anyway`, raise EmptyResult."""
    if not _is_paid(config, row):
        return
    if line := collection_line(row, config, facts_here(config, root)):
        logger.info("  " + line)  # an event with its keys already
    before = upstream([row.name], [as_configured(config, other) for other in JOBS]) - {row.name}
    policies = (_readiness(config, other, root) for other in JOBS if other.name in before)
    readiness = next(filter(None, policies), None)
    if readiness is None or not readiness.hopeless:
        return
    if config.anyway or not stop:
        logger.warning("  paid stage on a policy that is not ready: stage=%s reason=%s", row.name, readiness)
        return
    raise EmptyResult(
        f"{row.name} and what follows ask {config.teacher.model_name}, and {readiness}; nothing more was asked: train "
        "again, or go on all the same with --overrides anyway=true"
    )


def require_cap(config: Config, rows: Sequence[Job], root: Path) -> None:
    """Raise UsageError, with the jobs' greatest cost, where one asks a provider that charges and no cap is set."""
    paid = [row for row in rows if _is_paid(config, row)]
    if not paid or not is_uncapped(config.teacher, endpoints(config), root):
        return
    for row in paid:
        require_world(row.load().sections(config))  # a missing key comes before a missing cap
    names = ", ".join(row.name for row in paid)
    price, cap = _bound(config, paid, root)
    raise UsageError(
        f"teacher.max_usd is not set, and {names} would be billed: {price}; add a cap, such as "
        f"teacher.max_usd={cap:g}. At the cap everything stops and is kept; a higher one continues it"
    )


def is_uncapped(teacher: TeacherConfig, endpoints: Sequence[TeacherConfig], root: Path) -> bool:
    """True if one of these endpoints charges and neither the pipeline nor the project has a cap. A server on this
    machine needs none, after a warning: its prices are for comparison. A gateway elsewhere may be billed."""
    if teacher.max_usd is not None or teacher.project_max_usd is not None:
        return False
    urls = [endpoint.base_url or "" for endpoint in endpoints if charges(endpoint)]
    if not urls or ProjectLedger(root).cap is not None:
        return False
    if all(urlsplit(url).hostname in LOOPBACK for url in urls):
        logger.warning("spending has no cap, teacher.max_usd is not set: endpoints=%s", ",".join(dict.fromkeys(urls)))
        return False
    return True


def _bound(config: Config, rows: Sequence[Job], root: Path) -> tuple[str, float]:
    """Return the likely and the greatest cost of these jobs, in words, and a cap in USD to suggest."""
    if not (jobs := planned_here(config, [row.name for row in rows], root)):
        return "--dry-run may estimate it", _SOME_USD
    bounds = [planned.usd for planned in jobs if planned.usd is not None]
    if len(bounds) < len(jobs) or math.isnan(sum(bounds)):
        return "the cost is unknown", _SOME_USD
    likely = [planned.likely.usd for planned in jobs if planned.likely is not None]
    expected = f"likely ${sum(likely):,.2f}, " if likely else ""
    return f"{expected}at most ${sum(bounds):,.2f}", max(1.0, math.ceil(sum(bounds)))


def charges(teacher: TeacherConfig) -> bool:
    """True unless the model's tokens are free, as on a server of one's own."""
    try:
        rate = teacher_rate(teacher)
    except UsageError:
        return False  # a model without a price is refused later, with an error of its own
    return rate.input > 0 or rate.output > 0


_SOME_USD = 20.0
"""Cap suggested where the cost of a run is unknown, USD."""


def _readiness(config: Config, row: Job, root: Path) -> Readiness | None:
    """Return the readiness in the summary of a published policy; None if there is none, or an earlier R2V made it."""
    if row.place is None:
        return None
    link = place_of(config, row.name, root)
    try:
        recorded = read_artifact_manifest(link.resolve()).summary.get("readiness")
        return None if recorded is None else from_dict(Readiness, recorded)
    except (InputError, ValueError):
        return None


def _is_paid(config: Config, row: Job) -> bool:
    sections = row.load().sections(config)
    if config.policy.is_api and hasattr(sections, "inference"):
        return True
    return config.teacher.provider != "scripted" and asks_teacher(sections)
