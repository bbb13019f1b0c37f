"""Boosted trees, and a router model from outside the package: the file of docs/extending/router-model.md."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.config import RouterConfig, identity
from r2v.errors import InputError, UsageError
from r2v.router.baselines import score_function
from r2v.router.labels import labelled
from r2v.router.models import BoostedModel, Tree, load
from r2v.router.training import fit, report
from tests.docs.pages import REPOSITORY, blocks_of

from .rows import make_row

ROWS = labelled([make_row(number) for number in range(1_200)], "counterfactual")
FEATURES = ["uncertainty", "page"]


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None = None) -> None:
    """Write the page's module, or another text, into the folder of the command."""
    if text is None:
        (text,) = (
            block.text
            for block in blocks_of(REPOSITORY / "docs" / "extending" / "router-model.md")
            if block.language == "python"
        )
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])


def test_the_model_of_the_page_is_fitted_stored_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, monkeypatch, "router_of_page")
    config = RouterConfig(model="router_of_page:Centroid", features=FEATURES)
    model = fit(ROWS, config, seed=0)
    figures = report(model, ROWS)
    bundled = report(fit(ROWS, RouterConfig(features=FEATURES), seed=0), ROWS)
    assert figures["calibration"]["auroc"] > 0.97 * bundled["calibration"]["auroc"] > 0.6
    model.save(tmp_path / "r2v.json")
    assert json.loads((tmp_path / "r2v.json").read_text())["part_class"] == "router_of_page:Centroid"
    again = load(tmp_path / "r2v.json")
    assert again == model
    score = score_function("r2v", {"r2v": again})
    assert [score(row.features, 1, row.task_id, 0) for row in ROWS] == [model.predict(row.features) for row in ROWS]


def test_boosted_log_odds_are_the_sum_of_each_trees_leaf() -> None:
    model = fit(ROWS, RouterConfig(features=FEATURES), seed=0).part
    assert isinstance(model, BoostedModel)
    stump = Tree(features=(-2,), thresholds=(-2.0,), lefts=(-1,), rights=(-1,), values=(0.25,))
    model = dataclasses.replace(model, trees=(*model.trees, stump))

    def leaf(tree: Tree, x: list[float], node: int = 0) -> float:
        if tree.lefts[node] < 0:
            return tree.values[node]
        left = x[tree.features[node]] <= tree.thresholds[node]
        return leaf(tree, x, tree.lefts[node] if left else tree.rights[node])

    limits = {name: [-9.0, 0.0] for name in (0, 1)}
    for tree in model.trees:
        for name, limit in zip(tree.features, tree.thresholds, strict=True):
            limits.setdefault(name, []).append(limit)
    for x in [[one, other] for one in limits[0][::8] for other in limits[1][::8]]:  # at thresholds and between them
        assert model.predict(x) == model.rate * math.fsum(leaf(tree, x) for tree in model.trees)
    assert BoostedModel(intercept=0.5, rate=0.1, trees=()).predict([1.0]) == 0.5


def test_a_stored_model_is_loaded_by_a_process_that_has_not_fitted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, monkeypatch, "router_elsewhere")
    fit(ROWS, RouterConfig(model="router_elsewhere:Centroid", features=FEATURES), seed=0).save(tmp_path / "r2v.json")
    code = (
        "import sys; from pathlib import Path; from r2v.router.models import load; print(load(Path(sys.argv[1])).kind)"
    )
    command = [sys.executable, "-P", "-c", code, "r2v.json"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == "router_elsewhere:Centroid\n"


def test_a_function_fits_as_well_and_an_edited_file_makes_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\nclass First:\n    sign: float\n\n"
        "    def predict(self, x):\n        return self.sign * x[0]\n\n\n"
        "def fit_first(features, labels, weights, seed):\n    return First(1.0)\n\n\n"
        "def fit_nothing(features, labels, weights, seed):\n    return 3\n"
    )
    module(tmp_path, monkeypatch, "router_function", text)
    model = fit(ROWS, RouterConfig(model="router_function:fit_first", features=["uncertainty"]), seed=0)
    model.save(tmp_path / "r2v.json")
    assert load(tmp_path / "r2v.json") == model
    before = identity(RouterConfig(model="router_function:fit_first"))
    module(tmp_path, monkeypatch, "router_function", text + "\n# edited\n")
    assert identity(RouterConfig(model="router_function:fit_first")) != before
    assert "model_sha256" not in identity(RouterConfig())
    with pytest.raises(UsageError, match="fitting gave a int; it has to be a dataclass"):
        fit(ROWS, RouterConfig(model="router_function:fit_nothing", features=["uncertainty"]), seed=0)


def test_what_cannot_be_found_is_refused_with_the_folders_that_were_searched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean logistic"):
        RouterConfig(model="logistik")
    with pytest.raises(UsageError, match=r"no module nowhere_at_all; searched /.*, PYTHONPATH and installed packages"):
        RouterConfig(model="nowhere_at_all:Model")
    (tmp_path / "r2v.json").write_text('{"kind": "nowhere_at_all:Model", "names": [], "calibration": {}, "part": {}}')
    with pytest.raises(InputError, match="not a router"):
        load(tmp_path / "r2v.json")


def test_a_model_of_other_features_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r2v.json"
    fit(ROWS, RouterConfig(features=FEATURES), seed=0).save(path)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "feature_version": "another"}))
    with pytest.raises(InputError, match="reads features of version another, .* train the router again"):
        load(path)
