"""A third party's folder is data: for any values in it the report is made, or refused in one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.evaluation.tables.files import sha256_of
from tests.trust import drawn, whole_suites
from tests.trust.alter import DELETED, LeafPath, altered, leaves, rewrite
from tests.trust.tampering import pattern_of

FILES = (
    "structured_results/eval_bundle.json",
    "structured_results/manifest.json",
    "structured_results/main_table.csv",
    "structured_results/frontier.csv",
    "structured_results/per_category.csv",
    "setup.json",
    "attempt.meta.json",
)
WAYS: dict[str, Callable[[Any], Any]] = {
    "missing": lambda value: DELETED,
    "null": lambda value: None,
    "text": lambda value: "</script>\x00$x$ {value.__class__} {0:>4000000000}",
    "nan": lambda value: float("nan"),
    "large": lambda value: 1e308,
    "huge": lambda value: 10**400,
    "negative": lambda value: -1e9,
    "nested": lambda value: {"value": [value]},
    "empty": lambda value: [],
    "number": lambda value: 7,
    "bool": lambda value: True,
    "long": lambda value: 100_000 * "x",
}
CASES = [(name, way) for name in FILES for way in WAYS]


def places_in(path: Path) -> list[LeafPath]:
    """Return one leaf of each pattern of a JSON file; one cell of each column of a CSV file, in its second row."""
    if path.suffix == ".csv":
        return [(1, column) for column in range(len(path.read_text().splitlines()[0].split(",")))]
    record = json.loads(path.read_text())
    return list({pattern_of(record, leaf): leaf for leaf in leaves(record)}.values())


def alter(path: Path, leaf: LeafPath, way: str) -> None:
    """Rewrite the file with one leaf altered, and its hash in the manifest."""
    if path.suffix == ".csv":
        rows = path.read_text().splitlines()
        value = WAYS[way]("")
        cells = rows[1].split(",")
        cells[int(leaf[1])] = "" if value is DELETED else f'"{value if way != "huge" else "9" * 400}"'
        rewrite(path, "\n".join([rows[0], ",".join(cells), *rows[2:], ""]).encode())
    else:
        rewrite(path, json.dumps(altered(json.loads(path.read_text()), leaf, WAYS[way])).encode())
    manifest = path.with_name("manifest.json")
    if path.parent.name == "structured_results" and path != manifest:
        record = json.loads(manifest.read_text())
        for entry in record["files"]:
            entry["sha256"] = sha256_of((path.parent / entry["path"]).read_text())
        rewrite(manifest, json.dumps(record).encode())


@pytest.mark.parametrize(("name", "way"), drawn(CASES, 2, "report"))
def test_a_hostile_value_is_shown_or_refused_in_one_line(
    name: str, way: str, micro_results: Path, tmp_path: Path
) -> None:
    """With --whole-suites each leaf pattern is altered in one of the ways, and each way is used on its share of
    them."""
    places = places_in(micro_results / name)
    share = places[list(WAYS).index(way) % len(places) :: len(WAYS)]
    for leaf in share if whole_suites else drawn(share, 1, f"report {name} {way}"):
        results = tmp_path / "results" / "mine"
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        shutil.copytree(micro_results.resolve(), results, copy_function=os.link)
        alter(results / name, leaf, way)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["report", str(results)])
        lines = err.getvalue().strip().splitlines()
        assert code in (0, 3) and len(lines) == (code == 3) and "a bug of R2V" not in err.getvalue(), (leaf, lines)
        assert list((tmp_path / "results").rglob(".*.draft")) == [], leaf


@pytest.mark.parametrize("what", ["a pipe", "a link"])
def test_only_plain_files_are_opened(
    what: str, micro_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "mine"
    shutil.copytree(micro_results.resolve(), results, copy_function=os.link)
    (results / "setup.json").unlink()
    if what == "a pipe":
        os.mkfifo(results / "setup.json")
    else:
        (results / "setup.json").symlink_to("/dev/zero")
    assert main(["report", str(results)]) == 3
    assert "setup.json is damaged: it is a link, a pipe or a device" in capsys.readouterr().err
