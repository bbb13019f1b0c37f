"""The report as the end of a pipeline: whichever of evaluate and ablations ends last leaves it whole.

It is a view of results that others have made, which nothing reads. Like a stage it has a fingerprint and is made only
where it is not up to date, but it has no job of its own in a chain, and what goes wrong with it is a line of the log
and takes no finished result away.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from r2v.config import Config
from r2v.log import logger
from r2v.pipeline.inputs import place_of
from r2v.pipeline.jobs import job


def report_of(config: Config, jobs: Collection[str], root: Path = Path()) -> Path | None:
    """Write the report after these jobs and return its page; None where there is nothing to show yet, where
    `logging.report` is false, and where it failed, which is said."""
    results = place_of(config, "evaluate", root)
    if not config.logging.report or not any(job(name).shown for name in jobs):
        return None
    from r2v.evaluation.tables.build import STRUCTURED
    from r2v.evaluation.tables.files import RESULTS_MANIFEST
    from r2v.report.build import build_report

    if not (results / STRUCTURED / RESULTS_MANIFEST).exists():  # ablations came first, or nothing was evaluated
        return None

    try:
        path = build_report(results)
    except Exception as error:  # of a view: the results are there, and stay
        logger.warning("no report: %s: %s; once mended: r2v report %s", type(error).__name__, error, results)
        return None
    logger.info("%-16s file://%s", "report", path.absolute())
    return path
