"""Regrading of recorded episodes by webarena-verified, on a machine without sites.

This is not a replay, since nothing is executed: another grader reads the recorded requests and answers, and the rate of
different verdicts is reported.
"""

from __future__ import annotations

import json
from pathlib import Path

from r2v.envs.webarena.addresses import PUBLIC_NAMES
from r2v.envs.webarena.home import child_python
from r2v.envs.webarena.install import run_program
from r2v.errors import InputError
from r2v.storage.files import write_lines

_REGRADER = Path(__file__).with_name("regrader.py")


def regrade(traces: Path, *, out: Path | None = None) -> list[str]:
    """Grade the recorded episodes, write a row per episode to `out`, and return a summary as lines. Raises InputError
    without recordings, UsageError if the child is not installed, EnvironmentFault if the grader fails."""
    recorded = [*traces.glob("*.har.gz")]
    if not recorded:
        raise InputError(f"{traces}: no recorded traffic; env.options.traces says where episodes of webarena keep it")
    words = [str(child_python()), "-I", str(_REGRADER), str(traces), json.dumps(PUBLIC_NAMES)]
    lines = run_program(words, "the offline grader failed", {"PYTHONWARNINGS": "ignore"}).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    if out is not None:
        write_lines(out, [json.dumps(row) for row in rows])
    graded = [row for row in rows if row["regraded"] is not None]
    agreeing = [row for row in graded if (row["regraded"] > 0) == (row["live"] > 0)]
    size = sum(path.stat().st_size for path in recorded) / len(recorded) / 1e6
    summary = [f"{len(rows)} episodes recorded, {size:.3f} MB each"]
    summary.append(
        f"{len(graded)} regraded by webarena-verified (not replayed): {sum(row['regraded'] > 0 for row in graded)} "
        f"succeed, live {sum(row['live'] > 0 for row in graded)}; {len(agreeing)} verdicts agree"
    )
    for row in graded:
        if row not in agreeing:
            summary.append(f"  {row['task_id']} seed {row['seed']}: live {row['live']:g}, regraded {row['regraded']:g}")
    for why in sorted({row["why"] for row in rows if row["regraded"] is None}):
        summary.append(f"{sum(row['why'] == why for row in rows)} not regraded: {why}")
    return summary
