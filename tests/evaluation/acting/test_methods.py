"""The method registry agrees with every table that is keyed by a method's name."""

from __future__ import annotations

import pytest

from r2v.config import METHODS, EvaluationConfig
from r2v.config.methods import BOUNDS, FAMILY, OURS, ROUTERS, STRONG, WEAK
from r2v.errors import UsageError
from r2v.evaluation.acting.methods import ACTORS, TRAINED_ROUTERS
from r2v.router.baselines import FIXED_SCORES


def test_every_method_has_an_actor_a_score_or_a_policy_of_its_own() -> None:
    other_policies = {"slm_bc_only", "slm_base"}
    assert {*ACTORS, *ROUTERS, *other_policies, "oracle_router"} == set(METHODS)
    assert {*FIXED_SCORES, *TRAINED_ROUTERS} == set(ROUTERS)


def test_the_groups_of_methods_are_what_the_tables_rest_on() -> None:
    assert {OURS, WEAK, STRONG} < set(METHODS) and OURS in ROUTERS and {WEAK, STRONG} < set(BOUNDS)
    assert set(FAMILY) == {
        *("slm_only", "llm_only", "random_router", "task_router", "entropy_router"),
        *("entropy_nonfree_router", "verifier_router", "disagreement_router"),
    }
    assert set(ROUTERS) | set(BOUNDS) == set(METHODS) and not set(ROUTERS) & set(BOUNDS)


def test_what_a_configuration_needs_follows_from_its_methods() -> None:
    assert not EvaluationConfig(methods=["slm_only", "slm_bc_only", "slm_base", "best_of_k"]).asks_teacher
    assert EvaluationConfig(methods=["slm_only", "oracle_router"]).asks_teacher
    assert not EvaluationConfig(methods=["slm_base", "llm_only"]).of_trained
    assert EvaluationConfig(methods=["slm_base", "r2v"]).of_trained
    assert EvaluationConfig().methods == [name for name, method in METHODS.items() if method.by_default]
    with pytest.raises(UsageError, match="did you mean r2v"):
        EvaluationConfig(methods=["r2w"])
