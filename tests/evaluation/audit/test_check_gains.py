"""Features that no models can have given, also where samples were drawn, which the suites' small run does not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import load
from r2v.envs.base import load_benchmark
from r2v.evaluation.audit.check_gains import GainsCheck
from r2v.evaluation.audit.recorded_actors import RecordedActors
from r2v.evaluation.settings import EvaluateSettings
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.session import episode_specs
from r2v.router.features import Signals, extract
from r2v.router.labels import FeatureRow

SETTINGS = EvaluateSettings.of(load(None, ["inference.num_candidates=3", "policy.model_name=org/model"]))
DESK = load_benchmark("desk", {"num_tasks": 60})
(SPEC, *_) = episode_specs(DESK, "train", [1], SETTINGS.calibration, method="", limit=1)


def row(*, sampled: bool = True, cases: bool = True) -> FeatureRow:
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
        nearest=(("get", 0.75), ("more", 0.5), ("more", 0.5)) if cases else (),
    )
    return FeatureRow(
        state_id="t/s1#0",
        episode_id="t/s1",
        task_id=SPEC.task.task_id,
        split=SPEC.split or "",
        step_idx=0,
        actor="slm",
        features=extract(signals),
        slm_episode_success=True,
        condition=SPEC.condition,
        perturbation_seed=SPEC.perturbation_seed,
        q_slm=1.0,
        q_llm=1.0,
        disagrees=False,
        proposal="",
        llm_action="",
    )


def altered(base: FeatureRow, name: str, value: float) -> FeatureRow:
    return replace(base, features={**base.features, name: value})


def found(*rows: FeatureRow) -> list[str]:
    """What is found in rows of an episode that was not played."""
    gains = GainsCheck("noisy", RecordedActors.of(SETTINGS, DESK), [], None, False)
    return list(gains.problems(SPEC, rows, None))


def test_what_the_extractor_makes_has_no_problem() -> None:
    assert found(row(), row()) == []
    assert found(row(sampled=False, cases=False)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples.n_unique", 4.0),
        ("samples.support", 1),
        ("verifier.v_prev", 1.5),
        ("verifier.v_proposal", 0.1234567),
        ("uncertainty.entropy_max", 21.0),
        ("uncertainty.logprob_mean", 0.1),
        ("cases.rank", 21.0),
        ("cases.rank", -1.0),
        ("cases.top_share", 1.1),
    ],
)
def test_what_no_models_can_have_said_is_named(name: str, value: float) -> None:
    problems = found(altered(row(), name, value))
    assert any(name in problem for problem in problems), problems


def test_all_rows_have_the_same_features() -> None:
    assert any("missing" in problem for problem in found(row(), row(sampled=False)))
    assert any("no feature here" in problem for problem in found(row(cases=False), row()))
    assert any("is no feature" in problem for problem in found(altered(row(), "other.figure", 0.5)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q_llm": 0.5}, "q_llm is 0.5"),
        ({"obeyed_slm": 2.0}, "obeyed_slm is 2.0"),
        ({"cost_llm": -1.0}, "cost_llm is -1.0"),
        ({"split": "train2"}, "split is train2"),
        ({"round": 1}, "round is 1"),
        ({"actor": "llm_fallback"}, "actor is llm_fallback"),
    ],
)
def test_a_row_says_what_the_plan_says_of_its_episode(change: dict[str, object], said: str) -> None:
    problems = found(replace(row(), **change))  # type: ignore[arg-type]
    assert any(said in problem for problem in problems), problems
