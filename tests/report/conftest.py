"""The report of the micro run, made once for every test that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.report.build import build_report


@pytest.fixture(scope="session")
def micro_results(micro_run: Path) -> Path:
    """The results folder of the micro run."""
    return micro_run / "results" / "micro"


@pytest.fixture(scope="session")
def micro_report(micro_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its report."""
    return build_report(micro_results, tmp_path_factory.mktemp("report") / "micro").parent
