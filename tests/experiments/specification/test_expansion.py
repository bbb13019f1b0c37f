"""The points of a specification: their number, their values, and those that are excluded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from r2v.errors import UsageError
from r2v.experiments.specification.expansion import Point, expand
from r2v.experiments.specification.spec import read_spec

BASE = {"lr": 1, "layers": 3, "lambda_ace": [0.1, 0.1], "model": {"kind": "mlp", "width": 8}, "scheduler": "constant"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE))
    return tmp_path


def points(folder: Path, text: str, head: str = "base_config: base.yaml\n") -> list[Point]:
    (folder / "spec.yaml").write_text(f"name: a\nmode: training\ncommand: run {{config}}\n{head}{text}")
    return expand(read_spec(Path("spec.yaml")))


def trees(found: list[Point]) -> list[dict[str, Any]]:
    return [yaml.safe_load(point.text) for point in found]


def test_the_grid_is_full_and_in_the_order_of_the_file(folder: Path) -> None:
    found = points(folder, "sweep: {lr: [1, 2], scheduler: [cosine, constant]}\n")
    assert [point.run for point in found] == ["run_001", "run_002", "run_003", "run_004"]
    assert [tuple(point.values.values()) for point in found] == [
        (1, "cosine"),
        (1, "constant"),
        (2, "cosine"),
        (2, "constant"),
    ]
    assert trees(found)[2] == {**BASE, "lr": 2, "scheduler": "cosine"}
    assert len({point.identity for point in found}) == 4


def test_a_whole_key_is_replaced_and_a_dotted_one_reaches_in(folder: Path) -> None:
    whole, dotted = (
        trees(points(folder, f"sweep: {sweep}\n"))[0] for sweep in ("{model: [{kind: cnn}]}", "{model.width: [9]}")
    )
    assert whole["model"] == {"kind": "cnn"}
    assert dotted["model"] == {"kind": "mlp", "width": 9}
    with pytest.raises(UsageError, match=r"lr\.a: lr is 1, no section"):
        points(folder, "sweep: {lr.a: [1]}\n")


def test_a_list_in_the_base_is_no_sweep_and_a_list_of_lists_is_one(folder: Path) -> None:
    found = points(folder, "sweep:\n  lambda_ace:\n    - [0.001, 0.001]\n    - [0.01, 0.01]\n  lr: [1, 2]\n")
    assert len(found) == 4
    assert trees(found)[2]["lambda_ace"] == [0.01, 0.01]
    assert trees(points(folder, "sweep: {lr: [2]}\n"))[0]["lambda_ace"] == BASE["lambda_ace"]


def test_base_is_below_fixed_and_fixed_below_the_sweep(folder: Path) -> None:
    (tree,) = trees(points(folder, "fixed_overrides: {lr: 5, scheduler: cosine}\nsweep: {lr: [7]}\n"))
    assert (tree["lr"], tree["scheduler"], tree["layers"]) == (7, "cosine", 3)


def test_paired_values_multiply_with_the_grid(folder: Path) -> None:
    text = "sweep: {lr: [1, 2]}\nzip:\n  - {layers: [3, 4], lambda_ace: [[1, 1], [1, 1, 1]]}\n"
    found = trees(points(folder, text + "checks: [len(lambda_ace) == layers - 1]\n"))
    assert [(tree["lr"], tree["layers"], len(tree["lambda_ace"])) for tree in found] == [
        (1, 3, 2),
        (1, 4, 3),
        (2, 3, 2),
        (2, 4, 3),
    ]


def test_points_that_break_a_check_are_named_before_anything_runs(folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        points(folder, "sweep: {layers: [3, 4, 5]}\nchecks: [len(lambda_ace) == layers - 1]\n")
    told = str(refused.value)
    assert "2 points are refused" in told and "run_002 (layers=4)" in told and "run_003 (layers=5)" in told
    assert "len(lambda_ace) == layers - 1 does not hold" in told
    with pytest.raises(UsageError, match="no key depth"):
        points(folder, "checks: [depth > 1]\n")


def test_excluded_points_are_left_out_and_conditional_keys_swept_where_they_hold(folder: Path) -> None:
    text = "sweep: {lr: [1, 2, 3], scheduler: [cosine, constant]}\n"
    found = points(folder, text + "exclude: [{lr: [1, 2], scheduler: cosine}]\n")
    assert [(point.values["lr"], point.values["scheduler"]) for point in found] == [
        (1, "constant"),
        (2, "constant"),
        (3, "cosine"),
        (3, "constant"),
    ]
    found = points(folder, text + "when: {lr: {scheduler: cosine}}\n")
    assert [point.values for point in found if point.values["scheduler"] == "constant"] == [{"scheduler": "constant"}]
    assert len(found) == 4
    with pytest.raises(UsageError, match="no point is left"):
        points(folder, text + "exclude: [{layers: 3}]\n")


def test_seeds_are_an_axis_that_no_setting_is_named_by(folder: Path) -> None:
    found = points(folder, "sweep: {lr: [1, 2]}\nseeds: [4, 5]\n")
    assert [
        (point.values["lr"], point.seed, tree["seed"]) for point, tree in zip(found, trees(found), strict=True)
    ] == [
        (1, 4, 4),
        (1, 5, 5),
        (2, 4, 4),
        (2, 5, 5),
    ]


def test_explicit_configurations_are_points_as_they_are(folder: Path) -> None:
    (folder / "other.yaml").write_text("lr: 9\n")
    found = points(folder, "", head="configs: [base.yaml, other.yaml]\n")
    assert trees(found) == [BASE, {"lr": 9}]
    assert [str(point.base) for point in found] == ["base.yaml", "other.yaml"] and not any(
        point.values for point in found
    )
    with pytest.raises(UsageError, match="gone.yaml"):
        points(folder, "", head="configs: [gone.yaml]\n")


def test_an_identity_holds_the_program_and_no_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = points(folder, "sweep: {lr: [1]}\n")[0].identity
    (folder / "run").write_text("echo\n")
    changed = points(folder, "sweep: {lr: [1]}\n")[0].identity
    assert before != changed
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("base.yaml", "run"):
        (elsewhere / name).write_text((folder / name).read_text())
    assert points(elsewhere, "sweep: {lr: [1]}\n")[0].identity == changed


def test_a_swept_key_that_the_base_does_not_have_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="r2v"):
        points(folder, "sweep: {schduler: [cosine]}\n")
    assert "key=schduler" in caplog.text and "did you mean scheduler?" in caplog.text


def test_the_pipelines_own_configurations_are_checked_as_its_stages_would(folder: Path) -> None:
    head = "name: a\nmode: training\nbase_config: base.yaml\n"
    (folder / "base.yaml").write_text("prefix: micro\ntraining: {num_epochs: 3}\n")
    (folder / "spec.yaml").write_text(head + "stage: evaluate\nsweep: {router.budget: [0.1, 0.2]}\n")
    found = expand(read_spec(Path("spec.yaml")))
    resolved = trees(found)[1]
    assert resolved["router"]["budget"] == 0.2 and resolved["training"]["num_epochs"] == 3
    (folder / "spec.yaml").write_text(head + "sweep: {router.bugdet: [0.1]}\n")
    with pytest.raises(UsageError, match=r"run_001 \(router.bugdet=0.1\): unknown key router.bugdet; did you mean"):
        expand(read_spec(Path("spec.yaml")))
    (folder / "spec.yaml").write_text(
        head + "sweep: {policy.max_seq_len: [64, 2048], inference.max_new_tokens: [64]}\n"
    )
    with pytest.raises(UsageError, match=r"1 points are refused: run_001 .*must be above inference.max_new_tokens"):
        expand(read_spec(Path("spec.yaml")))
