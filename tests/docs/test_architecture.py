"""The architecture page names files that exist, keeps its spine short and draws the layers that the linter checks."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs/architecture.md").read_text()
LONGEST_SPINE = 3_000
"""Lines of all files of the spine together: an hour's reading."""


def test_the_spine_is_about_a_dozen_files_that_are_read_in_an_hour() -> None:
    spine = re.findall(r"^\| \d+ \| `(r2v/[^`]+\.py)` \| [^|]+\? \|$", PAGE, re.M)
    assert 10 <= len(spine) <= 14 and len(set(spine)) == len(spine)
    assert sum(len((REPOSITORY / file).read_text().splitlines()) for file in spine) <= LONGEST_SPINE


def test_every_path_of_the_page_exists() -> None:
    paths = re.findall(r"`((?:r2v|scripts)/[^`<]*)`", PAGE)
    assert len(paths) > 30 and [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_the_tree_has_the_packages_in_the_order_of_the_layers() -> None:
    drawn = re.findall(r"^  (\w+)/ ", PAGE, re.M)
    linter = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(one["layers"] for one in linter["contracts"] if one["containers"] == ["r2v"])
    packages = [name for line in layers for name in line.split(" | ") if (REPOSITORY / "r2v" / name).is_dir()]
    assert drawn == packages


def test_every_module_of_the_table_of_moves_exists() -> None:
    rows = re.findall(r"^\| ([\w.]+)[^|]* \| ([^|]+) \|$", (REPOSITORY / "docs/moved-modules.md").read_text(), re.M)
    old = [before for before, _ in rows[1:]]
    assert len(old) > 300 and old == sorted(old)
    missing = []
    for target in (target for _, now in rows[1:] for target in now.split(", ")):
        path = target if "/" in target else target.replace(".", "/")
        path = path if path.startswith(("benchmarks/", "tests/")) else f"r2v/{path}"
        if not any((REPOSITORY / f"{path}{end}").is_file() for end in ("", ".py", "/__init__.py")):
            missing.append(target)
    assert missing == []
