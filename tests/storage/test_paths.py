"""Paths: folder names that every tool can read, and those that an earlier version made."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.pipeline.jobs import JOBS, job
from r2v.storage.paths import Places


def places(root: Path) -> Places:
    return Places(benchmark="shop.benchmark:Shop", condition="noisy", root=root)


def place(root: Path, name: str) -> Path:
    """Return the published place of a job, by the template of its row."""
    template = job(name).place
    assert template is not None
    return places(root).published(template)


@pytest.mark.parametrize("name", [row.name for row in JOBS if row.place is not None])
def test_no_place_of_a_benchmark_by_dotted_path_has_a_colon(name: str, tmp_path: Path) -> None:
    folder = place(tmp_path, name).relative_to(tmp_path).as_posix()
    assert ":" not in folder and "shop.benchmark.Shop" in folder
    assert places(tmp_path).name == "shop.benchmark.Shop_noisy"
