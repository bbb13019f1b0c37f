"""The files of a calibration, and the tasks of its records."""

from __future__ import annotations

from r2v.config import load
from r2v.evaluation.audit.check_calibration import calibration_files
from r2v.evaluation.settings import EvaluateSettings


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
