"""The tables of several students, on made-up pieces whose figures are known in closed form."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import robustness_table
from benchmarks.hazards_table import hazards_table
from benchmarks.placing import POINTS
from benchmarks.student_pieces import Piece, joined
from benchmarks.students import HAZARDS
from benchmarks.students_table import ahead, iqm, oracle, same, table
from r2v.errors import UsageError
from tests.made_pieces import TASKS, made_piece


def _area(share: float) -> float:
    """Return the area under (0, 0), this share of the gap from .1 to .5 of its cost, and (1, 1)."""
    return 0.05 * share + 0.4 * share + 0.5 * (share + 1) / 2


@pytest.fixture
def three(tmp_path: Path) -> list[Piece]:
    rivals = {"entropy": 20, "verifier": 30}
    return [made_piece(tmp_path, number, {"r2v": 30, **rivals}) for number in (0, 1, 4)]


def _row(lines: list[str], method: str) -> list[str]:
    return next([part.strip() for part in line.split("|")[1:-1]] for line in lines if line.startswith(f"| {method} |"))


def test_the_table_prints_areas_leads_and_detectable_leads_as_they_are_in_closed_form(three: list[Piece]) -> None:
    lines = table(three, "noisy")
    assert lines[0].startswith("noisy: 3 of 5 training seeds (0, 1, 4), 40 tasks; slm_only 0.000 for 0.00 mUSD")
    assert _row(lines, "r2v")[1].startswith(f"{_area(0.75):.3f} [")
    entropy = _row(lines, "entropy")
    assert entropy[2].startswith(f"+{_area(0.75) - _area(0.5):.3f} [")
    # The lead is the mean over tasks of .7 where r2v alone solves one, a quarter of them: its error is known.
    error = 0.7 * math.sqrt(0.25 * 0.75 / TASKS)
    assert float(entropy[4]) == pytest.approx(2.80 * error, rel=0.1)
    assert entropy[5:7] == ["3 of 3", "0.500"] and _row(lines, "r2v")[6] == "0.750 for 0.01"
    assert entropy[-2:] == ["0.50", "0.50"]
    assert _row(lines, "verifier")[5] == "0 of 3"


def test_a_part_earns_its_place_where_the_interval_over_its_replacement_is_above_0(three: list[Piece]) -> None:
    line = next(line for line in table(three, "noisy") if line.startswith("- verifier, as a threshold"))
    lead, error = _area(0.75) - _area(0.5), 0.7 * math.sqrt(0.25 * 0.75 / TASKS)
    assert lead - 1.96 * error > 0 and f"earns its place: yes, +{lead:.3f} [" in line
    assert line.endswith("seeds: 3 of 3")


def test_the_table_ends_with_the_verdict_on_each_aim(three: list[Piece]) -> None:
    lead = _area(0.75) - _area(0.5)
    lines = table(three, "noisy", planned=3, sized=True)
    assert f"- APGR at least +0.10 over entropy: +{lead:.3f} (met)" in lines
    assert any(line.startswith("- no baseline ahead") and line.endswith("(open)") for line in table(three, "noisy"))


def test_the_oracle_takes_the_cheapest_rescues_first_and_the_share_closed_is_of_its_gap(three: list[Piece]) -> None:
    closed, lines = oracle(three, "noisy")  # all its ten tasks for 20 micro-USD each: straight from 0 to 1, then 1
    best, ours, theirs = 0.1 + 0.8, _area(1.0), _area(1.0)  # both solve all of the first ten tasks
    assert f"APGR {best:.3f}, r2v there {ours:.3f}, entropy {theirs:.3f}" in lines[0]
    assert np.isnan(closed).all() and "closes undefined of the gap" in lines[0]  # there is no gap
    assert "0: 0.000, 1: 1.000 LLM steps" in lines[0]


def test_the_oracles_gap_is_closed_by_the_share_that_the_areas_say(tmp_path: Path) -> None:
    piece = made_piece(tmp_path, 0, {"r2v": 6, "entropy": 2}, rescue=10)
    closed, _ = oracle([piece], "noisy")
    best, ours, theirs = 0.05 + 0.9, _area(0.6), _area(0.2)
    assert closed[0] == pytest.approx((ours - theirs) / (best - theirs))


def test_a_piece_of_another_number_of_tasks_is_refused(three: list[Piece]) -> None:
    cell = three[0].cells["noisy", "r2v", POINTS[0]]
    cell["success"] = cell["success"][:-1]
    with pytest.raises(UsageError, match=r"pieces of \[39, 40\] tasks"):
        table(three, "noisy")


def test_students_and_episodes_are_counted_as_they_are(three: list[Piece]) -> None:
    assert iqm(np.array([100.0, 0.0, 3.0, 1.0, 2.0])) == pytest.approx(2.0)
    draws = np.linspace(0.1, 0.2, 50)
    assert ahead(np.array([draws, -draws, draws - 0.15])) == (1, 1)
    assert same(three, "noisy", "entropy", POINTS) == pytest.approx(0.5)


def test_a_feature_group_earns_its_place_against_r2v_without_it(tmp_path: Path) -> None:
    pieces = [made_piece(tmp_path, number, {"r2v": 30, "entropy": 20, "without page": 10}) for number in (0, 1)]
    line = next(line for line in table(pieces, "noisy") if line.startswith("- features of the group page"))
    assert f"earns its place: yes, +{_area(0.75) - _area(0.25):.3f} [" in line


def test_attacks_and_categories_are_counted_over_the_episodes_that_were_hit(tmp_path: Path) -> None:
    piece = made_piece(tmp_path, 0, {"r2v": 30})
    injection, error = (HAZARDS.index(name) for name in ("prompt_injection", "tool_error"))
    for cell in piece.cells.values():
        cell["hit"] = [(1 << injection) * (at < 10) | (1 << error) * (at % 2) for at in range(TASKS)]
        cell["obeyed"] = "1" * 4 + "0" * (TASKS - 4)
    lines = hazards_table([piece], "noisy", ["r2v", "without page"])
    assert "success: tool_error | success: prompt_injection" in lines[2]
    ours = _row(lines, "r2v")  # the first 30 of 40 tasks are solved: 15 of the 20 odd ones, all of the first ten
    assert [cell.split(" [")[0] for cell in ours[1:]] == ["0.400", "0.750", "1.000"]
    assert [cell.rpartition(" ")[2] for cell in ours[1:]] == ["10", "20", "10"]
    assert not any("without page" in line for line in lines)
    for cell in piece.cells.values():
        cell["hit"] = [0] * TASKS
    assert hazards_table([piece], "noisy", ["r2v"]) == []  # on clean


def test_pieces_of_one_student_are_joined_task_by_task_and_of_another_refused(tmp_path: Path) -> None:
    first, other = (
        made_piece(tmp_path, number, {"r2v": solved, "entropy": 20}) for number, solved in ((0, 30), (1, 10))
    )
    for piece in (first, other):
        piece.head["thresholds"] = {"r2v": [{"tau": 0.5, "cost": 1.0}]}
    both = joined([first, other])
    cell = both.cells["noisy", "r2v", POINTS[0]]
    assert cell["success"] == "1" * 30 + "0" * 10 + "1" * 10 + "0" * 30 and len(cell["micro_usd"]) == 2 * TASKS
    assert _row(table([both], "noisy"), "r2v")[1].startswith(f"{_area(0.5):.3f} [")
    other.head["thresholds"] = {"r2v": [{"tau": 0.6}]}
    with pytest.raises(UsageError, match="student 0: r2v has other thresholds"):
        joined([first, other])


def test_equal_dollars_are_read_off_a_curve_and_where_a_method_was_placed_is_told(tmp_path: Path) -> None:
    """entropy solves 10, 20 and 30 of 40 for 20, 30 and 40 micro-USD: 25 for 35, by interpolation. Behind the last
    point the line goes to llm_only, which solves all for 100."""
    piece = made_piece(tmp_path, 0, {"r2v": 30, "entropy": 20})
    for point, solved in zip(POINTS, (0, 10, 20, 30, 30), strict=True):
        piece.cells["noisy", "entropy", point]["success"] = "1" * solved + "0" * (TASKS - solved)
    usd = np.array([0, 20, 35, 75, 100]) * 1e-6
    successes = piece.success_for("noisy", "entropy", usd, np.ones((len(usd), TASKS)))
    assert successes == pytest.approx([0, 10 / 40, 25 / 40, 35 / 40, 1])
    costs = {"r2v": (1, 2, 4, 8, 16), "entropy": (0.5, 1.5, 4, 8, 15)}
    piece.head["thresholds"] = {name: [{"tau": 0.5, "cost": cost} for cost in some] for name, some in costs.items()}
    assert piece.placed("entropy") == [0.5, 0.75, 1, 1, 15 / 16]
    assert _row(table([piece], "noisy"), "entropy")[-3] == "0.50 to 1.00"


def test_the_robustness_gap_is_paired_and_known_in_closed_form(tmp_path: Path) -> None:
    solved_tasks = {"r2v": 36, "entropy": 36}, {"r2v": 30, "entropy": 20}
    pieces = {
        condition: [made_piece(tmp_path, number, solved, condition=condition) for number in (0, 1)]
        for condition, solved in zip(("clean", "noisy"), solved_tasks, strict=True)
    }
    lines = robustness_table.table(pieces, POINTS[2])
    entropy, ours = _row(lines, "entropy"), _row(lines, "r2v")
    assert entropy[1] == ours[1] == "0.900"
    assert ours[2].startswith("+0.150 [") and ours[3] == ""
    assert entropy[2].startswith("+0.400 [") and entropy[3].startswith("+0.250 [")
    assert [line.split(" |")[0] for line in lines[2:]] == ["| slm_only", "| llm_only", "| r2v", "| entropy"]
    draws = robustness_table.drawn(np.ones((2, TASKS)))
    assert draws == pytest.approx(1.0)
