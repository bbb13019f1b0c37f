"""Report at the end of a pipeline, written after evaluate and again after ablations.

It is a view of finished results that no stage reads. Like a stage it has a fingerprint and is made only if out of date;
but it is no job of a chain, and its failure is logged and leaves the results as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from r2v.config import Config
from r2v.log import logger
from r2v.pipeline.inputs import place_of
from r2v.pipeline.jobs import job


def report_of(config: Config, jobs: Collection[str], root: Path = Path()) -> Path | None:
    """Write the report after these jobs and return its page; None where there is no result yet, `logging.report` is
    false, or it failed, which is logged."""
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
    except Exception as error:  # the report is a view: its failure must not fail a stage whose results are finished
        reason = f"{type(error).__name__}: {error}; once mended: r2v report {results}"
        logger.warning("report failed: error=%s", reason)
        return None
    logger.info("report: page=file://%s", path.absolute())
    return path
