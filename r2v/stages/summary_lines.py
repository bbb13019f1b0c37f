"""Summary lines: figures of a stage's result, each with its name and unit, for one line of the log.

The figures come from the stage's reports, which hold more of them. A figure that was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NO_PAIR = {
    "not_train": "of no training task",
    "all_equal": "with equal candidates",
    "not_measured": "not measured",
    "margin": "with too small a margin",
    "unparseable": "with an action that does not parse",
    "canary": "where an injected instruction was followed",
    "similar": "with actions too alike",
    "length_ratio": "with actions of unlike length",
    "duplicate": "as in another state",
    "task_cap": "beyond the most a task may have",
}
"""Reasons of `r2v.policy.pairs` that a state gives no pair, in words."""


def verifier_line(report: Mapping[str, Any]) -> str:
    """Return the figures of a verifier on held-out examples."""
    aurocs = (
        ("within_state", "between actions of a state"),
        ("length_alone", "by the conversation's length alone"),
        ("teacher_alone", "by who acted alone"),
        ("last_observation_hidden", "without the last observation"),
    )
    area = _known("AUROC", report.get("auroc"), ".3f")
    others = ", ".join(filter(None, (_known(name, report.get(f"auroc_{key}"), ".3f") for key, name in aurocs)))
    return _listed(
        f"{report['examples']} actions of {report['tasks']} {report['measured_on']}",
        f"{area} ({others})" if area and others else area,
        _known("accuracy", report.get("accuracy"), ".1%") + f" (majority {report['accuracy_majority']:.1%})",
        _known("Brier score", report.get("brier"), ".4f") + f" (of the mean {report['brier_constant']:.4f})",
        _known("calibration error", report.get("ece"), ".4f"),
        _known("temperature", report.get("temperature"), ".3f"),
    )


def pairs_line(states: int, counts: Mapping[str, int]) -> str:
    """Return the number of preference pairs, and the reasons of states without one."""
    others = [f"{counts[reason]} {meaning}" for reason, meaning in _NO_PAIR.items() if counts.get(reason)]
    return f"{states} states gave {counts['pairs']} pairs" + (f"; no pair from {', '.join(others)}" if others else "")


def ranking_line(figures: Mapping[str, float | None]) -> str:
    """Return the figures of choosing among sampled actions by the verifier."""
    return _listed(
        f"{figures['states_with_a_choice']} states whose samples differ in value, {figures['pairs']} comparisons",
        _known("right by the verifier", figures["within_state_verifier"], ".1%"),
        _known("by log-probability", figures["within_state_log_prob"], ".1%"),
        _known("ties of the verifier", figures["ties_within_state"], ".1%"),
        _known("success of a random sample", figures["random_of_k"], ".1%"),
        _points("of the verifier's", figures["best_of_k_less_random"]),
        _points("of the likeliest", figures["most_likely_of_k_less_random"]),
        _points("of the best there is", figures["oracle_of_k_less_random"]),
    )


def corruptions_line(counts: Mapping[str, int]) -> str:
    """Return the counts of labels from executed corrupted actions."""
    return (
        f"{sum(counts.values())} corrupted actions executed to the end: {counts['kept']} labels kept, "
        f"{counts['not_savable']} at states that the teacher could not save either"
    )


def consensus_line(counts: Mapping[str, int]) -> str:
    """Return the counts of executed labels shown to a judge."""
    return (
        f"{sum(counts.values())} executed labels shown to the judge: {counts['kept']} confirmed and kept, "
        f"{counts['disputed']} disputed, {counts['not_judged']} not judged"
    )


def judge_line(figures: Mapping[str, Any]) -> str:
    """Return the counts of a judge's answers, and its mean scores of actions with a known outcome."""
    judge, means, judged = figures["judge"], figures["mean_score"], figures["judged"]
    kinds = (("success", "of successes"), ("failure", "of failures"), ("wrong_action", "of wrong actions"))
    scores = [f"{means[kind]:.3f} {name} ({judged[kind]})" for kind, name in kinds if means[kind] is not None]
    return _listed(
        f"{figures['examples']} examples judged by {judge['model']} of {judge['provider']}",
        "questions: " + ", ".join(f"{count} {kind}" for kind, count in figures["questions"].items()),
        f"mean score {', '.join(scores)}" if scores else "",
    )


def round_line(figures: Mapping[str, Any]) -> str:
    """Return the figures of a round of the router's rows."""
    thresholds = [f"{threshold:.4g} for {float(budget):.0%}" for budget, threshold in figures["thresholds"].items()]
    return _listed(
        f"round {figures['round']}: {_counterfactuals(figures)}",
        f"LLM steps {figures['llm_call_rate']:.1%}",
        f"thresholds {', '.join(thresholds)} of the steps" if thresholds else "",
        f"${figures['cost']:.4f} at list price",
        _known("AUROC of the router before", figures["auroc_before"], ".3f"),
        _known("AUROC with these rows", figures["auroc_after"], ".3f"),
        _known("decisions changed", figures["moved"], ".1%"),
    )


def features_line(figures: Mapping[str, Any]) -> str:
    """Return the figures of the policy's own roll-outs among the router's rows."""
    return _listed(
        f"the policy alone: {_counterfactuals(figures)}",
        f"success {figures['slm_success']:.1%}",
        f"{figures['n_env_faults']} roll-outs not measured",
        f"{figures['n_never_branched']} in shared worlds left out",
    )


def router_line(figures: Mapping[str, Any]) -> str:
    """Return a router's operating point on calibration tasks, and the quality of its fit."""
    return _listed(
        f"threshold {figures['tau']:.4g}: LLM steps {figures['llm_call_rate']:.1%}",
        f"success {figures['success']:.1%}",
        f"${figures['cost']:.4f} an episode at list price, prompt cache counted",
        *_fits(figures["report"]),
    )


def imputed_features_line(figures: Mapping[str, Any]) -> str:
    """Return the counts of an imputed router's recorded steps."""
    return (
        f"{figures['n_steps']} recorded steps of {figures['n_tasks']} tasks; the policy acts otherwise than its "
        f"teacher at {figures['n_disagreements']}"
    )


def imputed_router_line(figures: Mapping[str, Any]) -> str:
    """Return an imputed router's threshold on recorded steps, and the quality of its fit."""
    placed, beside = figures["imputed"], figures.get("beside")
    return _listed(
        f"threshold {figures['tau']:.4g}: {placed['llm_call_rate']:.1%} of the recorded steps to the LLM",
        _known("agreement with the teacher", placed["agreement"], ".1%"),
        _known("agreement at steps kept", placed["agreement_of_kept_steps"], ".1%"),
        _known(f"with router.model={beside['model']}", beside["agreement_of_kept_steps"], ".1%") if beside else "",
        *_fits(figures["report"]),
    )


def _counterfactuals(figures: Mapping[str, Any]) -> str:
    return (
        f"{figures['n_steps']} steps of {figures['n_tasks']} tasks, at {figures['n_disagreements']} the LLM would act "
        f"otherwise, which gains at {figures['n_gain']} and harms at {figures['n_harm']}"
    )


def _fits(report: Mapping[str, Any]) -> list[str]:
    """Return the quality of a router's fit, on training and on calibration tasks."""
    return [
        _listed(
            f"{name} tasks: {fit['steps']} steps of {fit['tasks']} tasks, positive {fit['positive_share']:.1%}",
            _known("AUROC", fit["auroc"], ".3f"),
            f"Brier score {fit['brier']:.4f} (of the mean {fit['brier_constant']:.4f})",
        )
        for name in ("train", "calibration")
        for fit in (report[name],)
    ]


def _known(name: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{name} {value:{form}}"


def _points(whose: str, gain: float | None) -> str:
    return "" if gain is None else f"{whose} {100 * gain:+.1f} points"


def _listed(*parts: str) -> str:
    return "; ".join(filter(None, parts))
