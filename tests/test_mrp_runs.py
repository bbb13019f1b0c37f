"""The table over runs of `make mrp`, on made-up runs with known answers, and the stored parts of a real one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.mrp_runs import TABLES, Run, keep, table, tables
from r2v.evaluation.setup import MAIN
from r2v.storage.files import write_lines

TASKS = 20
POINTS = {"b0.10": 0.1, MAIN: 0.2, "b0.30": 0.3}


def made_run(folder: Path, seed: int, kernels: str, solved: dict[str, int], verdicts: dict[str, str]) -> Path:
    """Make a run: slm_only solves nothing for nothing, llm_only all for 1 USD, each method so many tasks at each
    point."""
    cells = [("slm_only", MAIN, 0, 0.0), ("llm_only", MAIN, TASKS, 1.0)]
    cells += [(name, point, many, usd) for name, many in solved.items() for point, usd in POINTS.items()]
    tasks = [f"t{number}" for number in range(TASKS)]
    lines = [
        {
            "condition": "noisy",
            "method": name,
            "point": point,
            "tasks": tasks,
            "success": [float(at < many) for at in range(TASKS)],
            "usd": [usd] * TASKS,
        }
        for name, point, many, usd in cells
    ]
    run = folder / f"seed-{seed}-{kernels}"
    write_lines(run / "outcomes.jsonl.zst", map(json.dumps, lines))
    rows = [f"{name},noisy,{metric},{verdict}" for name, verdict in verdicts.items() for metric in ("apgr", "other")]
    rows += [f"{name},noisy,success_rate,lower" for name in solved]  # for any cost: no verdict of the table
    (run / "comparisons.csv").write_text("\n".join(["method_b,condition,metric,verdict", *rows]) + "\n")
    facts = {"seed": seed, "kernels": kernels, "cpu_capability": "AVX2", "processor": "P", "commit": "c" * 40}
    (run / "run.json").write_text(json.dumps({**facts, "date": "2026-01-01", "cpu_seconds": 7}))
    return run


def area(share: float) -> float:
    return 0.05 * share + 0.2 * share + 0.7 * (share + 1) / 2


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    ahead, behind = {"disagreement_router": "higher"}, {"disagreement_router": "lower"}
    solved = {"r2v": 12, "disagreement_router": 8, "entropy_router": 4}
    folders = [
        made_run(tmp_path, 0, "default", solved, ahead),
        made_run(tmp_path, 0, "avx2", {**solved, "r2v": 6}, behind),
        made_run(tmp_path, 1, "default", {**solved, "entropy_router": 14}, ahead),
    ]
    return [Run.read(folder) for folder in folders]


def _row(lines: list[str], begins: str) -> list[str]:
    return next(line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {begins}"))


def test_the_lead_is_the_mean_over_seeds_and_both_kernels_of_a_seed_are_one(runs: list[Run]) -> None:
    lines = table(runs, "noisy")
    leads = [area(12 / 20) - area(8 / 20), area(6 / 20) - area(8 / 20), area(12 / 20) - area(8 / 20)]
    mean = ((leads[0] + leads[1]) / 2 + leads[2]) / 2
    row = _row(lines, "disagreement_router")
    assert row[1].startswith(f"{mean:+.3f} [")
    assert row[2:4] == [f"{(leads[0] + leads[2]) / 2:+.3f}", f"{leads[1]:+.3f}"], "of the default kernels, and of AVX2"
    assert row[4:6] == [f"{min(leads):+.3f}", f"{max(leads):+.3f}"]
    assert row[6:] == ["2 of 3", "1 of 3"], "only comparisons that count dollars"
    assert lines[0].startswith("noisy: 3 runs, training seeds 0, 1; r2v's APGR ")


def test_the_best_of_each_run_takes_the_baseline_that_leads_there(runs: list[Run]) -> None:
    leads = [area(12 / 20) - area(8 / 20), area(6 / 20) - area(8 / 20), area(12 / 20) - area(14 / 20)]
    mean = ((leads[0] + leads[1]) / 2 + leads[2]) / 2
    assert _row(table(runs, "noisy"), "the best of each run")[1].startswith(f"{mean:+.3f} [")
    assert any(line.startswith("| disagreement_router, the best |") for line in table(runs, "noisy"))


def test_intervals_cover_seeds_and_tasks(tmp_path: Path) -> None:
    alike = [Run.read(made_run(tmp_path, n, "default", {"r2v": 12, "disagreement_router": 8}, {})) for n in range(4)]
    low, high = _bounds(_row(table(alike, "noisy"), "disagreement_router")[1])
    share = 4 / 20  # the share of tasks that r2v alone solves
    error = area(1) - area(0)
    spread = error * (share * (1 - share) / TASKS) ** 0.5
    assert (high - low) / 2 == pytest.approx(1.96 * spread, rel=0.15), "equal seeds leave the tasks' spread"
    solved = ({"r2v": 12, "disagreement_router": 12}, {"r2v": 12, "disagreement_router": 0})
    unlike = [Run.read(made_run(tmp_path, 10 + n, "default", solved[n % 2], {})) for n in range(4)]
    wider = _bounds(_row(table(unlike, "noisy"), "disagreement_router")[1])
    assert wider[1] - wider[0] > 1.5 * (high - low)


def _bounds(cell: str) -> tuple[float, float]:
    low, high = cell.partition("[")[2].strip("]").split(", ")
    return float(low), float(high)


def test_every_run_is_listed_and_an_empty_folder_is_none(runs: list[Run], tmp_path: Path) -> None:
    lines = tables(tmp_path)
    assert "| seed 0, avx2 | AVX2 | P | ccccccc | 2026-01-01 | 7 |" in lines
    with pytest.raises(FileNotFoundError, match="no run"):
        tables(tmp_path / "none")


def test_what_is_kept_of_a_run_gives_the_figures_of_its_own_table(micro_run: Path, tmp_path: Path) -> None:
    keep(micro_run / "results" / "micro", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*TABLES, "outcomes.jsonl.zst"}
    (tmp_path / "run.json").write_text("{}")
    outcomes = {
        (outcome["condition"], outcome["method"], outcome["point"]): outcome for outcome in Run.read(tmp_path).outcomes
    }
    with (tmp_path / "frontier.csv").open() as lines:
        rows = {(row["condition"], row["method"], row["operating_point"]): row for row in csv.DictReader(lines)}
    assert rows.keys() == outcomes.keys() and rows
    for cell, row in rows.items():
        assert np.mean(outcomes[cell]["success"]) == pytest.approx(float(row["success_rate"]), abs=1e-5)
        assert np.mean(outcomes[cell]["usd"]) == pytest.approx(float(row["avg_cost_cached"]), abs=1e-5)
