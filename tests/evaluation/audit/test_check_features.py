"""Figures that no models can have given, also where samples were drawn, which the suites' small run does not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import load
from r2v.evaluation.audit.check_features import between_steps, feature_problems
from r2v.evaluation.settings import EvaluateSettings
from r2v.llm.types import Reply, Sample, Usage
from r2v.router.features import Signals, extract
from r2v.router.labels import FeatureRow

GROUPS = "router.features=[uncertainty,verifier,samples,cases]"


def settings(*overrides: str) -> EvaluateSettings:
    return EvaluateSettings.of(load(None, ["inference.num_candidates=3", *overrides]))


def row(*, sampled: bool = True, cases: bool = True, step: int = 0, previous: float | None = None) -> FeatureRow:
    """What the features of a step are, as the extractor makes them."""
    samples = tuple(Sample(text=f'{{"tool":"{tool}"}}') for tool in ("get", "get", "more")) if sampled else ()
    scores = (0.5, 0.25, 0.75, 0.6) if sampled else (0.5,)
    proposal = Sample(text='{"tool":"get"}', tokens=("a", "b"), logprobs=(-0.25, -0.5), entropies=(0.5, 1.25))
    signals = Signals(
        goal="",
        observations=("page",),
        actions=(),
        tools=(),
        proposal=Reply(samples=(proposal,), model="slm", usage=Usage(tokens_in=9, tokens_out=2, cost_usd=0.0)),
        max_steps=8,
        samples=samples,
        scores=scores,
        previous_score=previous,
        nearest=(("get", 0.75), ("more", 0.5), ("more", 0.5)) if cases else (),
    )
    return FeatureRow(
        state_id=f"t/s1#{step}",
        episode_id="t/s1",
        task_id="t",
        split="evaluation",
        step_idx=step,
        actor="slm",
        features=extract(signals),
        slm_episode_success=True,
    )


def altered(base: FeatureRow, name: str, value: float) -> FeatureRow:
    return replace(base, features={**base.features, name: value})


def test_what_the_extractor_makes_has_no_problem() -> None:
    assert list(feature_problems(row(), settings(GROUPS))) == []
    assert list(feature_problems(row(sampled=False, cases=False), settings())) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples.agreement", 0.5),
        ("samples.n_unique", 1.5),
        ("samples.n_unique", 4.0),
        ("samples.support", 1),
        ("verifier.v_best", 0.4),
        ("verifier.v_gap12", 0.9),
        ("verifier.v_std", 0.9),
        ("verifier.v_mean", 0.9),
        ("verifier.v_prev", 1.5),
        ("verifier.v_proposal", 0.1234567),
        ("uncertainty.entropy_first", 1.5),
        ("uncertainty.entropy_mean", 1.5),
        ("uncertainty.entropy_max", 21.0),
        ("uncertainty.entropy_nonfree_mean", 1.5),
        ("uncertainty.logprob_min", -0.1),
        ("uncertainty.logprob_mean", 0.1),
        ("cases.share", 0.9),
        ("cases.rank", 21.0),
        ("cases.rank", -1.0),
        ("cases.top_share", 1.1),
        ("cases.similarity_mean", 0.8),
    ],
)
def test_what_no_models_can_have_said_is_named(name: str, value: float) -> None:
    found = list(feature_problems(altered(row(), name, value), settings(GROUPS)))
    assert any(name in problem for problem in found), found


def test_a_group_that_the_settings_ask_for_is_there_and_no_other() -> None:
    assert any("missing" in problem for problem in feature_problems(row(sampled=False), settings(GROUPS)))
    assert any("missing" in problem for problem in feature_problems(row(cases=False), settings(GROUPS)))
    assert any("no feature here" in problem for problem in feature_problems(row(), settings()))


def test_without_samples_all_follows_from_one_score() -> None:
    assert list(feature_problems(altered(row(sampled=False, cases=False), "verifier.v_best", 0.6), settings()))


def test_an_action_has_one_score_before_and_after_it_was_played() -> None:
    first, second = row(), row(step=1, previous=0.5)
    assert list(between_steps(first, second)) == []
    assert list(between_steps(altered(first, "verifier.v_proposal", 0.4), second))
