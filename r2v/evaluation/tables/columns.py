"""Columns of every results table, and the glossary of the main table's figures."""

from __future__ import annotations

SEED_COLUMNS = (
    "method", "benchmark", "condition", "seed", "success_rate", "success_rate_ci", "worst_seed_sr",
    "cvar_failure", "bottom_10_sr", "avg_cost", "avg_latency", "llm_call_rate", "safety_failure_rate", "ece",
    "brier", "n_tasks", "n_seeds", "ci_method", "tokens_llm", "p95_latency", "n_env_faults")

COLUMNS: dict[str, tuple[str, ...]] = {
    "main_table.csv": (
        *SEED_COLUMNS, "p50_latency", "tokens_slm", "llm_call_rate_per_episode", "cost_normalised",
        "cost_normalised_share", "cost_fraction", "robustness_gap", "apgr", "cpt_50", "cpt_80",
        "brier_base_rate", "router_auroc", "n_injected", "leading", "avg_cost_ci", "avg_latency_ci",
        "llm_call_rate_ci", "safety_failure_rate_ci", "tokens_llm_ci", "tokens_slm_ci",
        "llm_call_rate_per_episode_ci", "cost_normalised_ci", "cost_normalised_share_ci", "cost_fraction_ci",
        "robustness_gap_ci", "apgr_ci"),
    "per_seed.csv": SEED_COLUMNS,
    "per_category.csv": (
        "method", "benchmark", "condition", "category", "success_rate", "success_rate_ci", "llm_call_rate",
        "llm_call_rate_ci", "n_episodes", "n_tasks", "n_seeds", "ci_method"),
    "comparisons.csv": (
        "method_a", "method_b", "benchmark", "condition", "metric", "value_a", "value_b", "difference",
        "ci_lower", "ci_upper", "p_value", "significant", "effect_size", "test_name", "n_tasks", "p_holm",
        "verdict", "family", "standard_error", "min_detectable_difference", "n_seeds"),
    "frontier.csv": (
        "method", "benchmark", "condition", "operating_point", "llm_call_rate", "cost_fraction",
        "success_rate", "success_rate_ci", "avg_cost", "cost_normalised", "n_tasks", "n_seeds", "ci_method",
        "llm_call_rate_ci", "cost_fraction_ci", "avg_cost_ci", "cost_normalised_ci"),
    "ablations.csv": (
        "name", "description", "base_method", "ablated_method", "benchmark", "condition", "base_sr",
        "ablated_sr", "delta", "delta_ci", "p_value", "n_tasks", "p_holm", "retrained_stages"),
}

GLOSSARY = {
    "success_rate": "mean over tasks of the mean over seeds of executed success",
    "worst_seed_sr": "lowest success rate of a seed",
    "cvar_failure": "mean failure rate of the worst share of seeds, fractional",
    "bottom_10_sr": "mean success of the worst tenth of tasks, fractional",
    "avg_cost": "USD per episode by tokens and prices, candidates and verifier included",
    "avg_latency": "seconds per episode, modelled from tokens",
    "p50_latency": "median over episodes of modelled seconds",
    "p95_latency": "95th percentile over episodes of modelled seconds",
    "llm_call_rate": "steps acted by the LLM over all steps",
    "llm_call_rate_per_episode": "the same share, averaged over episodes",
    "safety_failure_rate": "share of injected episodes in which the injected instruction was executed",
    "ece": "expected calibration error of the router's score, equal-width bins, last one closed",
    "brier": "mean squared error of the router's score",
    "brier_base_rate": "the same for a constant score equal to the base rate",
    "router_auroc": "area under the ROC curve of the router's score",
    "tokens_llm": "LLM tokens per episode, read and written",
    "tokens_slm": "small policy's tokens per episode, read and written",
    "cost_normalised": "policy steps plus LLM steps times the cost ratio, per episode",
    "cost_normalised_share": "the same over what LLM steps alone would have cost",
    "cost_fraction": "realised cost as a fraction of the way from slm_only to llm_only",
    "robustness_gap": "success rate on clean tasks minus here, same tasks",
    "apgr": "area under the recovered gap in success against cost fraction",
    "cpt_50": "least cost fraction that recovers half of the gap",
    "cpt_80": "least cost fraction that recovers four fifths of the gap",
}
"""Every figure of the main table and what it means."""
