"""The report of the micro run, made once for every test that reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import warm
from tests.trust import MICRO


@pytest.fixture(scope="session")
def micro_results(micro_run: Path) -> Path:
    """Return the results folder of the micro run."""
    return micro_run / "results" / "micro"


@pytest.fixture(scope="session")
def micro_report(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of its report, as `r2v run` leaves it without a further command."""
    folder = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(micro_run, folder, symlinks=True)
    done = warm.run(folder, "run", "--config", str(MICRO), "--overrides", "logging.report=true")
    assert done.returncode == 0, done.stderr
    assert "r2v against" in done.stdout and "main_table" not in done.stdout
    report = folder / "results" / "report" / "micro"
    assert f"look at it   file://{report}/index.html" in done.stdout
    return report
