"""Early stopping: the best goes on, most points do not, and every decision can be repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.errors import InputError, UsageError
from r2v.experiments.compare import compare
from r2v.experiments.records import read_record
from r2v.experiments.schedule.asha import promotable, read_decisions, replayed
from r2v.experiments.schedule.opening import RunOptions
from r2v.experiments.schedule.orchestrator import run_experiment
from r2v.experiments.specification.asha_rule import AshaRule, levels_of
from tests.experiments.programs import Sweep

RULE = "asha: {resource: epochs, levels: [1, 3, 9]}\n"
POINTS, FULL = 27, 27 * 9


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    return Sweep(tmp_path)


def epochs(sweep: Sweep) -> int:
    """Return the steps taken by all runs together."""
    runs = sweep.record().runs
    return sum((1, 3, 9)[run.rung or 0] for run in runs if run.status == "completed")


def test_only_the_best_third_of_a_rung_goes_on() -> None:
    among = {"a": 1.0, "b": 3.0, "c": 3.0, "d": 0.0, "e": 2.0, "f": 0.5}
    assert promotable(among, (), 3, "max") == "b"
    assert promotable(among, ("b",), 3, "max") == "c"
    assert promotable(among, ("b", "c"), 3, "max") is None
    assert promotable(among, (), 3, "min") == "d"
    assert promotable({"a": 1.0, "b": 2.0}, (), 3, "max") is None


def test_who_ties_with_the_last_of_the_best_goes_on_too() -> None:
    among = {"a": 0.9, "b": 0.9, "c": 1.0, "d": 0.9, "e": 0.8, "f": 0.1}
    gone: list[str] = []
    while (point := promotable(among, gone, 3, "max")) is not None:
        gone.append(point)
    assert gone == ["c", "a", "b", "d"]
    assert promotable({"a": 0.0, "b": -0.0, "c": 1.0}, ("a",), 3, "min") == "b"


@pytest.mark.parametrize(
    ("whole", "eta", "levels"),
    [(60, 3, (7, 20, 60)), (9, 3, (1, 3, 9)), (8, 2, (2, 4, 8)), (4.5, 3, (0.5, 1.5, 4.5)), (4, 2, (1, 2, 4))],
)
def test_without_levels_there_are_three_rungs(whole: float, eta: int, levels: tuple[float, ...]) -> None:
    assert levels_of(AshaRule(resource="a.b", levels=(), eta=eta), [f"a: {{b: {whole}}}\n"] * 2) == levels


@pytest.mark.parametrize("values", [["3"], ["true"], ["-9"], ["[9]"], ["9", "18"], ["9", "null"]])
def test_a_resource_from_which_no_levels_follow_is_named_before_anything_runs(values: list[str]) -> None:
    with pytest.raises(UsageError, match=r"asha: epochs.* levels: \["):
        levels_of(AshaRule(resource="epochs", levels=()), [f"epochs: {value}\n" for value in values])


def test_the_best_point_is_found_at_less_than_half_of_the_steps_and_decisions_replay(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(POINTS, more=RULE), RunOptions())
    found = compare(folder)
    assert found.settings[0].values["x"] == POINTS and epochs(sweep) < FULL / 2
    assert len(found.left_out) == POINTS - len(found.settings)
    count, wrong = replayed(folder, 3, "max")
    assert count == sum(run.rung in (1, 2) for run in read_record(folder).runs) and wrong == []
    assert main(["experiments", "replay", folder.name]) == 0
    first = read_decisions(folder)[0]
    worst = min(first.among, key=lambda point: first.among[point])
    lines = (folder / "decisions.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "point": worst})
    (folder / "decisions.jsonl").write_text("\n".join(lines) + "\n")
    assert replayed(folder, 3, "max")[1] == [replace(first, point=worst)]
    assert main(["experiments", "replay", folder.name]) == 3


def test_rungs_of_the_default_rule_run_and_are_told_before(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    spec = sweep.write(9, more="asha: {resource: epochs}\n")
    assert main(["experiments", "run", "--exp", str(spec), "--dry-run"]) == 0
    assert "asha: epochs 1 -> 3 -> 9; " in capsys.readouterr().out
    folder = run_experiment(spec, RunOptions())
    texts = {run.rung: Path(run.config_path).read_text() for run in read_record(folder).runs}
    assert ["epochs: 1" in texts[0], "epochs: 3" in texts[1], "epochs: 9" in texts[2]] == [True] * 3
    assert compare(folder).settings[0].values["x"] == 9 and replayed(folder, 3, "max")[1] == []


def test_it_goes_on_where_it_was_interrupted_with_the_same_decisions(sweep: Sweep) -> None:
    spec = sweep.write(9, more=RULE)
    whole = run_experiment(spec, RunOptions())
    parts = run_experiment(spec, RunOptions(limit=4))
    for _ in range(6):
        run_experiment(spec, RunOptions(resume=True, limit=3))
    assert parts != whole and read_decisions(parts) == read_decisions(whole)
    assert [(run.run, run.status) for run in read_record(parts).runs] == [
        (run.run, run.status) for run in read_record(whole).runs
    ]


def test_damaged_decisions_are_named(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(1), RunOptions())
    with pytest.raises(InputError, match="only an experiment with asha"):
        read_decisions(folder)
    for text in ("{\n", "[]\n", '{"point": 1}\n'):
        (folder / "decisions.jsonl").write_text(text)
        with pytest.raises(InputError, match="damaged"):
            read_decisions(folder)
