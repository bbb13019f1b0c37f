"""Regrading: episodes that were recorded are graded again by webarena-verified, on a machine without sites.

It is no replay: nothing is executed. Requests and answers that were recorded are read by another grader, whose verdict
may differ; how often is counted.
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
    """What came of it, in lines; a row an episode goes to `out`. Raises InputError where nothing was recorded,
    UsageError where nothing is installed, EnvironmentFault where the grader fails."""
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
    told = [f"{len(rows)} episodes recorded, {size:.3f} MB each"]
    told.append(
        f"{len(graded)} regraded by webarena-verified (not replayed): {sum(row['regraded'] > 0 for row in graded)} "
        f"succeed, live {sum(row['live'] > 0 for row in graded)}; {len(agreeing)} verdicts agree"
    )
    for row in graded:
        if row not in agreeing:
            told.append(f"  {row['task_id']} seed {row['seed']}: live {row['live']:g}, regraded {row['regraded']:g}")
    for why in sorted({row["why"] for row in rows if row["regraded"] is None}):
        told.append(f"{sum(row['why'] == why for row in rows)} not regraded: {why}")
    return told
