"""What the tests on a real Slurm share: one cluster and one finished pipeline for all that a worker runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, lacking
from tests.slurm.project import Project, ours_alive


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs on the cluster is marked slurm: `pytest -m 'not slurm'` leaves it out."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)


def require_slurm() -> None:
    """Skip where Slurm is not installed, and say so; in CI that is a failure."""
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
    """The shared cluster; its queue is emptied afterwards, for good: the look of a job at its chain may outlive it, and
    add a sentinel."""
    yield cluster
    cluster.wait(
        lambda: cluster.run("scancel", "--me") and not cluster.squeue() and not ours_alive(tmp_path), every=0.3
    )


@pytest.fixture
def project(slurm: Cluster, tmp_path: Path) -> Project:
    """A project in which nothing was done yet."""
    return Project(slurm, tmp_path / "project")


@pytest.fixture(scope="session")
def base(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose whole pipeline was run once, here; nobody changes it."""
    made = Project(cluster, tmp_path_factory.mktemp("base") / "project")
    made.r2v("run", "--config", "configs/desk/noisy.yaml", "--overrides", "logging.report=false")
    return made


@pytest.fixture
def made(slurm: Cluster, base: Project, tmp_path: Path) -> Project:
    """A project of one's own whose whole pipeline is up to date."""
    return base.copy(tmp_path / "project")
