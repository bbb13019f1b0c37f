"""Dollars at equal success and non-inferiority, on made-up curves with known answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.headline_figures import Curves, headline_tables, lower_bound
from benchmarks.placing import POINTS
from benchmarks.rivals import BLEND, GAIN
from benchmarks.student_pieces import Piece, dollars_at, interpolated
from benchmarks.students_table import table
from benchmarks.study_aims import aim_lines
from tests.made_pieces import TASKS, made_piece

METHODS = ["r2v", "entropy", "verifier"]


def _curves(folder: Path, solved: dict[str, int], condition: str = "noisy") -> Curves:
    pieces = [made_piece(folder, number, solved, condition=condition) for number in (0, 1)]
    return Curves.of(pieces, condition, list(solved))


@pytest.fixture
def ahead(tmp_path: Path) -> Curves:
    return _curves(tmp_path, {"r2v": 30, "entropy": 20, "verifier": 30})


def test_a_curve_is_read_on_the_line_between_its_neighbouring_points_in_the_order_of_cost() -> None:
    cost, success = np.array([[4.0, 0.0, 2.0, 2.0]]), np.array([[1.0, 0.2, 0.6, 0.4]])
    for usd, expected in ((-1.0, 0.2), (1.0, 0.3), (2.0, 0.6), (3.0, 0.8), (9.0, 1.0)):
        assert interpolated(cost, success, np.array([usd])) == pytest.approx([expected])
    for level, usd in ((0.1, 0.0), (0.3, 1.0), (0.5, 2.0), (0.8, 3.0), (1.0, 4.0)):
        assert dollars_at(cost, success, level) == pytest.approx([usd])
    assert np.isnan(dollars_at(cost, success, 1.01)).all()


def test_where_a_curve_falls_the_first_dollars_that_reach_a_level_count() -> None:
    cost, success = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[0.0, 0.8, 0.2, 1.0]])
    assert dollars_at(cost, success, 0.4) == pytest.approx([0.5])


def test_dollars_at_equal_success_and_their_ratio_are_those_of_the_closed_form(ahead: Curves) -> None:
    # r2v solves .75 from 10 to 50 micro-USD, entropy .5; the LLM alone all for 100
    assert [1e6 * ahead.dollars("r2v", level)[0] for level in (0.6, 0.8)] == pytest.approx([8.0, 60.0])
    assert [1e6 * ahead.dollars("entropy", level)[0] for level in (0.6, 0.8)] == pytest.approx([60.0, 80.0])
    rows = headline_tables(ahead, 2)
    row = next(line for line in rows if line.startswith("| entropy | "))
    assert row.startswith("| entropy | 0.06 | 0.13 [")
    assert [cell.split(" [")[0] for cell in row.split(" | ")[2::2]] == ["0.13", "0.13", "0.75"]


def test_a_level_that_one_seed_never_reaches_has_no_dollars(tmp_path: Path) -> None:
    pieces = [made_piece(tmp_path, number, {"r2v": 30}) for number in (0, 1)]
    pieces[1].cells["noisy", "llm_only", ""]["success"] = "1" * 30 + "0" * 10
    curves = Curves.of(pieces, "noisy", ["r2v"])
    assert np.isnan(curves.dollars("r2v", 0.8)[0]) and not np.isnan(curves.dollars("r2v", 0.7)[0])
    assert any("not reached" in line for line in headline_tables(curves, 2))


def test_non_inferiority_is_judged_at_each_point_by_the_one_sided_bound(ahead: Curves) -> None:
    drawn = ahead.differences("entropy")
    assert drawn.shape[0] == len(POINTS) and drawn[:, 0] == pytest.approx(0.25)
    error = (0.25 * 0.75 / TASKS) ** 0.5  # r2v alone solves a quarter of the tasks, the same in both seeds
    assert lower_bound(drawn[2, 1:]) == pytest.approx(0.25 - 1.645 * error, abs=0.02)
    rows = [line for line in headline_tables(ahead, 2) if line.endswith("5 of 5 |")]
    assert [line.split(" | ")[0] for line in rows] == ["| entropy", "| verifier"]


def test_a_point_behind_by_more_than_the_margin_is_named(tmp_path: Path) -> None:
    behind = _curves(tmp_path, {"r2v": 20, "entropy": 30}, "clean")
    assert any(
        line.startswith("| entropy | -0.250 [") and line.endswith("| 0 of 5 |") for line in headline_tables(behind, 2)
    )
    (line,) = (line for line in aim_lines({}, behind, "clean", sized=True, complete=True) if "non-inferior" in line)
    assert "not shown for " + ", ".join(f"entropy at {point}" for point in POINTS) in line and "missed" in line


def test_each_aim_has_its_verdict_and_is_open_while_seeds_are_missing(ahead: Curves) -> None:
    leads = {"disagreement": np.full(50, 0.05), "entropy": np.full(50, 0.05)}
    lines = aim_lines(leads, ahead, "noisy", sized=True, complete=True)
    assert "- APGR at least +0.04 over disagreement, its interval above 0: +0.050 (met)" in lines
    assert "- APGR at least +0.10 over entropy: +0.050 (missed)" in lines
    assert "- dollars at success 0.80 at most 0.70 of entropy's: 0.75 (missed)" in lines
    assert all(line.endswith("(open)") for line in aim_lines(leads, ahead, "noisy", sized=True, complete=False)[2:-1])
    wide = leads | {"disagreement": np.array([0.05, *np.linspace(-0.1, 0.2, 50)])}
    assert any(
        "over disagreement" in line and "(missed)" in line
        for line in aim_lines(wide, ahead, "noisy", sized=True, complete=True)
    )


def test_in_other_studies_the_aim_is_that_no_baseline_is_ahead(ahead: Curves) -> None:
    leads = {"entropy": np.full(50, -0.05), "verifier": np.array([-0.05, *np.linspace(-0.1, 0.1, 50)])}
    assert aim_lines(leads, ahead, "noisy", sized=False, complete=True) == [
        "Aims:",
        "",
        "- no baseline ahead by a shown difference: entropy (missed)",
        "",
    ]


def test_parts_of_r2v_are_ablation_rows_and_no_baselines(tmp_path: Path) -> None:
    solved = {"r2v": 30, "entropy": 20, BLEND: 20, GAIN: 10}
    pieces: list[Piece] = [made_piece(tmp_path, number, solved) for number in (0, 1)]
    lines = table(pieces, "noisy")
    assert any(
        line.startswith("- choice per budget instead of the blend at each: earns its place: yes") for line in lines
    )
    assert any(line.startswith("- blend with disagreement instead of the gain alone: earns its") for line in lines)
    baselines = lines[
        lines.index("| baseline | " + " | ".join(f"at {point}" for point in POINTS) + " | non-inferior |") :
    ]
    assert not any(line.startswith(f"| {BLEND}") for line in baselines)
    holm = {
        line.split(" | ")[0]: line.split(" | ")[3] for line in lines if line.startswith(("| entropy", f"| {BLEND}"))
    }
    assert holm[f"| {BLEND}"] == "" and holm["| entropy"]
