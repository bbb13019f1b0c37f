"""A pilot's figures and advice, for plays with known answers."""

from __future__ import annotations

import pytest

from r2v.evaluation.pilot import PilotFigures, Play


def plays(solved: str, usd: float) -> dict[str, Play]:
    """Return a play for each letter: solved if it is 1."""
    return {f"t{index}": Play(solved=letter == "1", usd=usd) for index, letter in enumerate(solved)}


def test_the_bound_by_task_takes_the_cheaper_model_that_solves_it() -> None:
    figures = PilotFigures.of(plays("1100", 1.0), plays("1010", 10.0))
    assert (figures.only_small, figures.only_large) == (("t1",), ("t2",))
    assert (figures.small.success, figures.large.success, figures.by_task.success) == (0.5, 0.5, 0.75)
    assert figures.by_task.usd == pytest.approx((1 + 1 + 10 + 1) / 4), "what neither solves is played by the cheaper"
    assert figures.difference.difference == 0.0


def test_tasks_that_one_of_the_ways_has_not_measured_are_left_out() -> None:
    assert PilotFigures.of(plays("11", 1.0), plays("111", 2.0), plays("1", 1.0)).num_tasks == 1
    with pytest.raises(ValueError, match="no task"):
        PilotFigures.of(plays("1", 1.0), {})


def test_the_detectable_difference_shrinks_with_the_root_of_the_tasks() -> None:
    figures = PilotFigures.of(plays("1" * 5 + "0" * 5, 1.0), plays("1" * 10, 2.0))
    spread = (0.25 * 10 / 9) ** 0.5
    assert figures.detectable(10) == pytest.approx((1.959964 + 0.841621) * spread / 10**0.5, rel=1e-5)
    assert figures.detectable(40) == pytest.approx(figures.detectable(10) / 2)
    assert PilotFigures.of(plays("11", 1.0), plays("11", 2.0)).detectable(9) is None


@pytest.mark.parametrize(
    ("small", "large", "usd", "advice", "told"),
    [
        ("1101", "1101", (1.0, 10.0), "small", "no router can gain here"),
        ("1101", "1101", (10.0, 1.0), "large", "no router can gain here"),
        ("1000", "1110", (10.0, 1.0), "large", "for no more dollars"),
        ("0" * 12, "1" * 12, (1.0, 10.0), "large", "routing cannot pay much"),
        ("1" * 8 + "0" * 8, "1" * 16, (1.0, 10.0), "route", "at best a router solves 100% of the tasks for 55%"),
        ("1110", "1111", (1.0, 10.0), "unclear", "4 tasks do not show that the two models differ"),
    ],
)
def test_the_advice(small: str, large: str, usd: tuple[float, float], advice: str, told: str) -> None:
    verdict = PilotFigures.of(plays(small, usd[0]), plays(large, usd[1])).verdict()
    assert verdict.advice == advice and told in verdict.text


def test_one_model_asked_in_one_way_needs_no_router_whatever_it_happened_to_solve() -> None:
    figures = PilotFigures.of(plays("1000", 1.0), plays("1111", 1.0), same_model=True)
    assert figures.verdict().text == "no router can gain here: both are the same model, asked in the same way"


def test_a_router_that_looks_ahead_may_gain_where_no_task_is_the_large_models_own() -> None:
    figures = PilotFigures.of(plays("1100", 1.0), plays("1100", 10.0), plays("1111", 2.0))
    assert figures.best.success == 1.0 and figures.verdict().advice in ("route", "unclear")
