"""Settings are compared by their mean over seeds, in pairs, and the table names what the mean is over."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.errors import EmptyResult, UsageError
from r2v.experiments.compare import compare, comparison_lines
from r2v.experiments.records import ExperimentRecord, RunRecord, new_folder, read_record, write_record

SCORES = {0.1: (0.80, 0.82, 0.84), 0.2: (0.70, 0.71, 0.75), 0.3: (0.60, 0.66, 0.63)}


def experiment(scores: dict[float, tuple[float, ...]], *, goal: str = "max") -> Path:
    """Return an experiment whose runs left these scores, by setting and seed."""
    folder = new_folder("sweep")
    runs = []
    for lr, by_seed in scores.items():
        for seed, score in enumerate(by_seed):
            name = f"run_{len(runs) + 1:03d}"
            run_dir = folder / "runs" / name
            run_dir.mkdir(parents=True)
            (run_dir / "metrics.json").write_text(json.dumps({"score": score, "loss": 1 - score}))
            config = folder / "configs" / f"{name}.yaml"
            config.parent.mkdir(exist_ok=True)
            config.write_text(f"lr: {lr}\nseed: {seed}\nmodel: {{width: 8}}\n")
            runs.append(
                RunRecord(
                    run=name,
                    status="completed",
                    config_path=str(config),
                    run_dir=str(run_dir),
                    identity=name,
                    values={"lr": lr},
                    seed=seed,
                )
            )
    waiting = RunRecord(run="run_099", status="pending", config_path="", run_dir=str(folder / "no"), identity="w")
    record = ExperimentRecord(
        name="sweep", mode="training", spec="s", spec_sha256="0", created_at="2026", runs=(*runs, waiting), goal=goal
    )
    write_record(folder, record)
    return folder


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_best_mean_over_seeds_is_first_with_students_interval() -> None:
    found = compare(experiment(SCORES))
    best = found.settings[0]
    assert (best.label, best.runs, best.over) == ("lr=0.1", ("run_001", "run_002", "run_003"), "seeds")
    assert best.mean == pytest.approx(0.82)
    assert best.interval == pytest.approx((0.82 - 4.302653 * 0.02 / 3**0.5, 0.82 + 4.302653 * 0.02 / 3**0.5), abs=1e-6)
    assert [one.label for one in compare(experiment(SCORES, goal="min")).settings] == ["lr=0.3", "lr=0.2", "lr=0.1"]
    assert found.left_out == ("run_099",)


def test_settings_are_tested_in_pairs_of_seeds_with_holms_correction() -> None:
    second, third = compare(experiment(SCORES)).settings[1:]
    assert (second.difference, second.pairs) == (pytest.approx(-0.1), 3)
    assert second.p_value == third.p_value == pytest.approx(0.5)  # three pairs of one sign: 2 / 8, of two tests
    against = compare(experiment(SCORES), reference="run_004")
    assert against.reference == "lr=0.2" and against.settings[1].p_value is None
    with pytest.raises(UsageError, match="no such setting or run"):
        compare(experiment(SCORES), reference="run_400")


def test_one_seed_is_compared_by_what_was_done_on_each_unit() -> None:
    folder = experiment({0.1: (0.9,), 0.2: (0.5,)})
    for run, share in zip(read_record(folder).runs, (9, 5), strict=False):
        lines = [f"task-{index},{int(index < share)}" for index in range(10)]
        (Path(run.run_dir) / "outcomes.csv").write_text("\n".join(["unit,value", *lines]) + "\n")
    best, other = compare(folder).settings
    assert best.over == "units" and best.interval is not None and 0.6 < best.interval[0] < 0.9 < best.interval[1] <= 1
    assert (other.pairs, other.difference) == (10, pytest.approx(-0.4))
    assert other.p_value == pytest.approx(2 / 16)  # four tasks differ, all one way


def test_the_command_writes_csv_latex_and_a_plot_and_diff_names_what_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = experiment(SCORES)
    assert main(["experiments", "compare", folder.name, "--metric", "score"]) == 0
    printed = capsys.readouterr().out
    assert "best: lr=0.1" in printed and "comparison.csv" in printed
    with (folder / "comparison" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["lr"] for row in rows] == ["0.1", "0.2", "0.3"]
    tex = (folder / "comparison" / "comparison.tex").read_text()
    assert tex.count(r"\\") == 4 and r"\bottomrule" in tex
    assert (folder / "comparison" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert main(["experiments", "diff", "run_001", "run_005", "--experiment", folder.name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["lr", "seed", "score", "loss"]
    assert lines[1].split() == ["lr", "0.1", "0.2"]
    assert main(["experiments", "compare", folder.name, "--metric", "los"]) == 2
    assert "did you mean loss?" in capsys.readouterr().err


def test_an_experiment_of_which_nothing_is_completed_has_no_comparison() -> None:
    folder = experiment({})
    with pytest.raises(EmptyResult, match="no run is completed"):
        compare(folder)
    assert "best" in "\n".join(comparison_lines(compare(experiment({0.1: (1.0,)}))))


def test_two_programs_at_one_point_are_two_settings() -> None:
    folder = experiment({0.1: (0.8, 0.9)})
    record = read_record(folder)
    edited = replace(record.runs[0], run="run_050", identity="of another program", run_dir=str(folder / "runs/again"))
    Path(edited.run_dir).mkdir()
    (Path(edited.run_dir) / "metrics.json").write_text(json.dumps({"score": 0.1, "loss": 0.9}))
    write_record(folder, record.with_run(edited))
    found = compare(folder, "score")
    assert [(one.label, one.runs) for one in found.settings] == [
        ("lr=0.1", ("run_001", "run_002")),
        ("lr=0.1 (run_050)", ("run_050",)),
    ]
