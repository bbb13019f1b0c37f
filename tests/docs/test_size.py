"""The page on size: its table equals the output of the dry run for the shipped configuration and headers."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.pipeline.graph import selection
from r2v.slurm.estimate import estimate_lines, estimates
from r2v.slurm.site import headers
from r2v.slurm.site.headers import Resources
from r2v.storage.paths import SCRIPTS
from tests.docs.pages import REPOSITORY, blocks_of

PAGE = REPOSITORY / "docs" / "size.md"


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the output of a machine without WebArena."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def asked_of(config: Config, *without: str) -> dict[str, Resources]:
    rows, _ = selection(config, without=without)
    return {row.name: headers.read(REPOSITORY / SCRIPTS / row.command.script, row.name) for row in rows}


def test_the_tables_of_the_page_are_those_of_the_dry_run(tmp_path: Path) -> None:
    """If a table differs, the report has the block to paste."""
    config = load(REPOSITORY / "configs/webarena/noisy.yaml")
    asked = asked_of(config)
    lines = estimate_lines(config, asked, tmp_path)
    [block] = [block.text for block in blocks_of(PAGE) if block.language == "text"]
    basis = next(number for number, line in enumerate(lines) if line.startswith("tasks: "))
    assert block.splitlines() == lines[: basis - 1]
    assert not any(one.too_long for one in estimates(config, asked, tmp_path))


def test_the_larger_comparison_of_the_page_takes_as_many_starts_as_it_says(tmp_path: Path) -> None:
    [line] = [line for block in blocks_of(PAGE) for line in block.commands if "--overrides" in line]
    config = load(REPOSITORY / "configs/webarena/noisy.yaml", shlex.split(line.partition("--overrides")[2]))
    [long] = [one for one in estimates(config, asked_of(config), tmp_path) if one.too_long]
    starts = math.ceil(long.wall / (long.allotted.seconds or 0))
    assert long.name == "evaluate" and f"{starts} starts of a day" in PAGE.read_text()
