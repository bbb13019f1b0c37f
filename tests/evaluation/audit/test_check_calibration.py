"""Which files calibration leaves, and where its records are of."""

from __future__ import annotations

from dataclasses import asdict

from r2v.config import load
from r2v.evaluation.audit.check_calibration import calibration_files, scores_of, thresholds_of
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.setup import CalibrationRecord
from r2v.router.thresholds import OperatingPoint, PlacedScore, ScoreChoice

OWN = PlacedScore(tau=0.25, outcome=OperatingPoint(llm_call_rate=0.1, success=0.75, cost=0.02))


def test_files_of_routers_alone_and_alternatives_where_they_are() -> None:
    routed = EvaluateSettings.of(load(None, ["evaluation.methods=[slm_only,llm_only,random_router,r2v]"]))
    there = {"calibration/r2v.jsonl.zst", "calibration/entropy_router.jsonl.zst", "calibration/best.jsonl.zst"}
    assert set(calibration_files(routed, there)) == {
        "calibration.json",
        "calibration/r2v.jsonl.zst",
        "calibration/entropy_router.jsonl.zst",
        "calibration/router/r2v.jsonl.zst",
        "calibration/router/states.json",
    }
    unrouted = EvaluateSettings.of(load(None, ["evaluation.methods=[slm_only,llm_only]"]))
    assert set(calibration_files(unrouted, there)) == set()


def test_the_score_that_acts_is_the_chosen_one() -> None:
    ahead = PlacedScore(tau=0.5, outcome=OWN.outcome, difference=0.125, standard_error=0.0625)
    choice = ScoreChoice.of(OWN, {"disagreement_router": ahead}, 60)
    record = CalibrationRecord(tau=0.5, target=0.2, **asdict(OWN.outcome), choice=choice)
    records = {"r2v@b0.20": record, "r2v@main": CalibrationRecord(tau=0.25, target=0.1, **asdict(OWN.outcome))}
    assert thresholds_of(records) == {("r2v", "b0.20"): 0.5, ("r2v", "main"): 0.25}
    assert scores_of(records) == {("r2v", "b0.20"): "disagreement_router", ("r2v", "main"): "r2v"}
