"""Fixtures of the tests on a real Slurm: one cluster and one finished pipeline per test worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, lacking
from tests.slurm.project import Project, ours_alive


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the cluster as slurm, so that `pytest -m 'not slurm'` leaves it out."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)


def require_slurm() -> None:
    """Skip the test if Slurm is not installed; in CI, fail instead."""
    if missing := lacking():
        reason = f"no real Slurm here ({', '.join(missing)}): `make slurm` installs it where it may"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    require_slurm()
    with Cluster() as running:
        yield running


@pytest.fixture
def slurm(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Yield the shared cluster; cancel jobs afterwards until the queue stays empty, because a reconcile that outlives
    its job can still submit a sentinel."""
    yield cluster
    cluster.wait(
        lambda: cluster.run("scancel", "--me") and not cluster.squeue() and not ours_alive(tmp_path), every=0.3
    )


@pytest.fixture
def project(slurm: Cluster, tmp_path: Path) -> Project:
    """Return a project without any results."""
    return Project(slurm, tmp_path / "project")


@pytest.fixture(scope="session")
def base(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose whole pipeline was run once, locally; tests do not change it."""
    made = Project(cluster, tmp_path_factory.mktemp("base") / "project")
    made.r2v("run", "--config", "configs/desk/noisy.yaml", "--overrides", "logging.report=false")
    return made


@pytest.fixture
def made(slurm: Cluster, base: Project, tmp_path: Path) -> Project:
    """Return a copy of the finished project for one test."""
    return base.copy(tmp_path / "project")
