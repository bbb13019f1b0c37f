"""Lines of a stage's log: each figure has a name, and an unmeasured one is left out."""

from __future__ import annotations

import re

from r2v.policy.pairs import REASONS
from r2v.stages import summary_lines

FIT = {"steps": 150, "tasks": 20, "positive_share": 0.08, "auroc": 0.75, "brier": 0.0226, "brier_constant": 0.0736}
ROUND = {"n_tasks": 14, "n_steps": 85, "n_disagreements": 72, "n_gain": 19, "n_harm": 1, "cost": 0.3575}


def test_a_router_says_its_operating_point_and_its_fit() -> None:
    figures = {"tau": 0.22727, "llm_call_rate": 0.1639, "success": 0.25, "cost": 0.002665}
    line = summary_lines.router_line({**figures, "report": {"train": {**FIT, "auroc": None}, "calibration": FIT}})
    assert line == (
        "threshold 0.2273: LLM steps 16.4%; success 25.0%; $0.0027 an episode at "
        "list price, prompt cache counted; "
        "train tasks: 150 steps of 20 tasks, positive 8.0%; Brier score 0.0226 (of the mean 0.0736); "
        "calibration tasks: 150 steps of 20 tasks, positive 8.0%; AUROC 0.750; Brier score 0.0226 (of the mean 0.0736)"
    )


def test_a_round_says_what_it_showed_and_leaves_out_what_it_could_not() -> None:
    measured = {"auroc_before": 0.5726, "auroc_after": 0.754, "moved": 0.9138}
    routed = {**ROUND, **measured, "round": 1, "thresholds": {"0.07": 0.01478}, "llm_call_rate": 0.1765}
    assert summary_lines.round_line(routed) == (
        "round 1: 85 steps of 14 tasks, at 72 the LLM would act otherwise, which gains at 19 and harms at 1; "
        "LLM steps 17.6%; thresholds 0.01478 for 7% of the steps; $0.3575 at list price; "
        "AUROC of the router before 0.573; AUROC with these rows 0.754; decisions changed 91.4%"
    )
    first = {**ROUND, **dict.fromkeys(measured), "round": 0, "thresholds": {}, "llm_call_rate": 0.0}
    assert summary_lines.round_line(first).endswith("; LLM steps 0.0%; $0.3575 at list price")


def test_every_reason_against_a_pair_has_words() -> None:
    line = summary_lines.pairs_line(52, {"pairs": 31, **dict.fromkeys(REASONS, 2)})
    assert line.startswith("52 states gave 31 pairs; no pair from 2 of no training task, ")
    assert line.count(" 2 ") == len(REASONS) and not re.search(r"[a-z]_[a-z]", line)
    assert summary_lines.pairs_line(3, {"pairs": 3, **dict.fromkeys(REASONS, 0)}) == "3 states gave 3 pairs"


def test_figures_that_need_two_classes_are_left_out() -> None:
    report = {"examples": 39, "tasks": 4, "measured_on": "calibration tasks", "accuracy": 0.6, "accuracy_majority": 0.6}
    report |= {"auroc": None, "brier": 0.12, "brier_constant": 0.11, "ece": 0.03, "temperature": 0.78}
    assert summary_lines.verifier_line(report) == (
        "39 actions of 4 calibration tasks; accuracy 60.0% (majority 60.0%); Brier score 0.1200 (of the mean 0.1100); "
        "calibration error 0.0300; temperature 0.780"
    )
    assert "AUROC 0.700 (between actions of a state 0.800); accuracy" in summary_lines.verifier_line(
        report | {"auroc": 0.7, "auroc_within_state": 0.8, "auroc_length_alone": None}
    )
    counts = {"states_with_a_choice": 0, "pairs": 0}
    names = ("within_state_verifier", "within_state_log_prob", "ties_within_state", "random_of_k")
    names += ("best_of_k_less_random", "most_likely_of_k_less_random", "oracle_of_k_less_random")
    line = summary_lines.ranking_line(counts | dict.fromkeys(names))
    assert line == "0 states whose samples differ in value, 0 comparisons"
