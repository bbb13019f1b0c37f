"""Figures of calibration that no settings of this evaluation give."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from r2v.config import load
from r2v.evaluation.audit.check_calibration import calibration_problems, router_problems
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import CalibrationRecord
from r2v.router.thresholds import OperatingPoint, PlacedScore, ScoreChoice

OWN = CalibrationRecord(tau=0.25, target=0.1, llm_call_rate=0.1, success=0.75, cost=0.02)
RECORDS = {
    "r2v@main": OWN,
    "r2v@b0.20": replace(OWN, target=0.2, llm_call_rate=0.2),
    "random_router@main": replace(OWN, tau=0.5, target=0.02, llm_call_rate=1 / 11, by="cost"),
    "random_router@b0.20": replace(OWN, tau=0.5, target=0.02, llm_call_rate=1 / 11, by="cost"),
}
SETTINGS = EvaluateSettings.of(
    load(None, ["evaluation.methods=[slm_only,llm_only,random_router,r2v]", "evaluation.budgets=[0.2]"])
)


def problems(**records: CalibrationRecord) -> list[str]:
    return list(calibration_problems({**RECORDS, **records}, SETTINGS))


def test_what_was_played_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("r2v@main", {"cost": 1e300}, "out of range"),
        ("r2v@main", {"success": 1.25}, "out of range"),
        ("r2v@b0.20", {"target": 0.3}, "the budget is 0.2"),
        ("random_router@main", {"cost": 0.0206}, "above its target"),
        ("random_router@main", {"target": 0.03}, "r2v cost 0.02"),
        ("random_router@main", {"by": "llm_call_rate"}, "of these methods it is of cost"),
        ("r2v@b0.20", {"llm_call_rate": 0.25}, "above its target"),
    ],
)
def test_what_cannot_be_is_named(name: str, change: dict[str, Any], said: str) -> None:
    found = problems(**{name: replace(RECORDS[name], **change)})
    assert any(said in problem and problem.startswith(name) for problem in found), found


@pytest.mark.parametrize("key", ["tau", "llm_call_rate", "success", "cost"])
def test_the_main_point_is_the_one_that_the_router_realised(key: str) -> None:
    router = {name: value for name, value in asdict(OWN).items() if name != "target"}
    assert list(router_problems(RECORDS, router)) == []
    found = list(router_problems(RECORDS, {**router, key: 0.5}))
    assert any(problem.startswith("r2v@main") for problem in found), found
    assert len(found) == {"llm_call_rate": 2, "cost": 2}.get(key, 1), "what it realised is the target of main points"


AHEAD = PlacedScore(
    tau=0.5,
    outcome=OperatingPoint(llm_call_rate=0.25, success=0.875, cost=0.02),
    difference=0.125,
    standard_error=0.0625,
)
CHOICE = ScoreChoice.of(
    PlacedScore(tau=0.25, outcome=OperatingPoint(llm_call_rate=0.2, success=0.75, cost=0.02)),
    {"disagreement_router": AHEAD, "entropy_router": replace(AHEAD, difference=0.03)},
    60,
)
CHOSEN = CalibrationRecord(tau=0.5, target=0.2, llm_call_rate=0.25, success=0.875, cost=0.02, choice=CHOICE)


def test_a_choice_of_a_score_follows_from_its_figures() -> None:
    assert CHOICE.score == "disagreement_router" and problems(**{"r2v@b0.20": CHOSEN}) == []
    behind = replace(CHOICE, compared={"disagreement_router": replace(AHEAD, difference=0.03)})
    lies = {
        "by the figures of the choice it is r2v": replace(CHOSEN, choice=behind),
        "on 59 calibration tasks": replace(CHOSEN, choice=replace(CHOICE, num_tasks=59)),
        "are not those of disagreement_router": replace(CHOSEN, tau=0.25),
        "random_router is no score": replace(CHOSEN, choice=replace(CHOICE, compared={"random_router": AHEAD})),
        "compared at 0.03 USD": replace(
            CHOSEN,
            choice=replace(
                CHOICE, compared={"disagreement_router": replace(AHEAD, outcome=replace(AHEAD.outcome, cost=0.03))}
            ),
        ),
    }
    for said, record in lies.items():
        assert any(said in problem for problem in problems(**{"r2v@b0.20": record})), said
