"""The rest: what the stages after one are likely to be billed, and at most, told as each of them ends.

rest_line(config, job("verifier"), root)      # "the rest (candidates to ablations): likely $14.38, at most $743"
"""

from __future__ import annotations

import math
from pathlib import Path

from r2v.config import Config
from r2v.errors import R2VError
from r2v.pipeline.graph import selection
from r2v.pipeline.plan.dry_run import planned_jobs
from r2v.pipeline.plan.known import known_here
from r2v.pipeline.plan.wall import Allotted
from r2v.pipeline.rows import Job


def rest_line(config: Config, row: Job, root: Path, *, itself: bool = False) -> str | None:
    """The dollars of what comes after a stage, or (`itself`) of it too; None where nothing is asked of a paid teacher,
    or nobody can tell."""
    if config.teacher.provider == "scripted":
        return None
    try:
        names = [one.name for one in selection(config)[0]]
        rest = names[names.index(row.name) + (not itself) :] if row.name in names else []
        jobs = planned_jobs(config, known_here(config, root), {name: Allotted() for name in rest}, root)
    except R2VError:
        return None
    paid = [one for one in jobs if one.work.llm]
    bounds = [one.usd for one in paid]
    at_most = sum(usd for usd in bounds if usd is not None)
    if not paid or None in bounds or math.isnan(at_most):
        return None
    likely = sum(one.likely.usd for one in paid if one.likely is not None)
    return f"the rest ({paid[0].name} to {paid[-1].name}): likely ${likely:,.2f}, at most ${at_most:,.2f}"
