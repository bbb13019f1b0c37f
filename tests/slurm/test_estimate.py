"""The headers of the scripts against what their jobs are estimated to take."""

from __future__ import annotations

from r2v.config import load
from r2v.slurm.estimate import allotted, estimate_lines, estimates
from r2v.slurm.headers import Resources


def test_a_header_is_what_a_job_may_use() -> None:
    asked = Resources(directives={"gres": "gpu:h100:2", "cpus-per-task": "16", "ntasks": "2", "time": "1-00:00:00"})
    found = allotted(asked)
    assert (found.cpus, found.gpus, found.card, found.seconds) == (32, 2, "h100", 86400)
    bare = allotted(Resources())
    assert (bare.cpus, bare.gpus, bare.card, bare.seconds) == (1, 0, "", None)


def test_jobs_are_estimated_under_their_own_headers() -> None:
    config = load("configs/webarena/noisy.yaml")
    short = Resources(directives={"time": "01:00:00", "gres": "gpu:a100:1"})
    long = Resources(directives={"time": "48:00:00", "cpus-per-task": "8"})
    collect, perturb = estimates(config, {"collect": short, "perturb": long})
    assert collect.too_long and not perturb.too_long and (collect.gpu_hours > 0) and not perturb.gpu_hours
    lines = estimate_lines(config, {"collect": short})
    assert lines[1].startswith("collect") and "DOES NOT FIT" in lines[1] and lines[-1] == ""
    assert estimate_lines(config, {}) == []
