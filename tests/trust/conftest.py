"""Shared fixtures of the trust suites: one small evaluation with every kind of method, made once from the micro run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests import trust, warm
from tests.trust.alter import hard_copy

SMALL = (
    "evaluation.num_tasks=3",
    "evaluation.conditions=[noisy]",
    "evaluation.methods=[slm_only,llm_only,random_router,entropy_router,verifier_router,oracle_router,r2v,slm_bc_only,"
    "slm_base,best_of_k]",
    "evaluation.bootstrap=50",
)
"""Overrides of an evaluation that is audited in a third of a second."""


@pytest.fixture(scope="session")
def small_results(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project whose results/micro is that evaluation; tests do not alter it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    project, done = shared / "small-results", shared / "small-results.done"
    with (shared / "small-results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            hard_copy(micro_run, project)
            made = warm.run(project, "evaluate", "--config", str(trust.MICRO), "--overrides", *SMALL)
            assert made.returncode == 0, made.stderr
            done.touch()
    return project
