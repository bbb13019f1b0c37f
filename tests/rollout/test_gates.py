"""Measurements at a step: the models that are called, their contexts, and the number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from r2v.config import InferenceConfig
from r2v.data.episode import Tokens
from r2v.llm.types import Reply, Request, Sample, ScoreReply, ScoreRequest, Usage
from r2v.rollout.actors import PricedModel, PricedVerifier, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.router.baselines import Instruments, instruments
from r2v.wire.message import Message, ToolSpec
from tests.chains import SLM_PRICE

TOOLS = tuple(ToolSpec(name=name, description="") for name in ("open", "close"))
OPEN, CLOSE = '{"tool":"open"}', '{"tool":"close"}'


def message(role: Any, content: str) -> Message:
    return Message(role=role, content=content)


FIRST = StepView(
    task_id="t1",
    seed=3,
    step=0,
    max_steps=8,
    goal="open the door",
    observations=("a door",),
    actions=(),
    messages=(message("system", "you are"), message("user", "a door")),
    tools=TOOLS,
)
SECOND = replace(
    FIRST,
    step=1,
    observations=("a door", "a window"),
    actions=(CLOSE,),
    messages=(*FIRST.messages, message("assistant", CLOSE), message("user", "a window")),
    llm_calls=1,
)


THIRD = replace(
    SECOND,
    step=2,
    observations=("a door", "a window", "a wall"),
    actions=(CLOSE, OPEN),
    messages=(*SECOND.messages, message("assistant", OPEN), message("user", "a wall")),
)


@dataclass
class Model:
    """A chat model that answers each request with the number of samples it asks for, and keeps the requests."""

    texts: tuple[str, ...] = (OPEN, CLOSE, CLOSE)
    requests: list[Request] = field(default_factory=list)

    async def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        return reply_of(*(self.texts[k % len(self.texts)] for k in range(request.num_samples)))


@dataclass
class Verifier:
    """Scores that differ by action and by the length of the visible conversation."""

    requests: list[ScoreRequest] = field(default_factory=list)

    async def __call__(self, request: ScoreRequest) -> ScoreReply:
        self.requests.append(request)
        score = (0.75 if request.action == OPEN else 0.25) - len(request.messages) / 64
        return ScoreReply(score=score, tokens_in=100 * len(request.messages))


def reply_of(*texts: str) -> Reply:
    samples = tuple(Sample(text=text, tokens=(text,), logprobs=(-0.5,), entropies=(0.25,)) for text in texts)
    return Reply(samples=samples, usage=Usage(tokens_in=10, tokens_out=5), model="m")


PROPOSAL = reply_of(OPEN)
INFERENCE = InferenceConfig(temperature=0.5, top_p=0.75, max_llm_calls=4)


def measure(extractor: FeatureExtractor, *views: StepView) -> list[dict[str, float]]:
    async def all_of() -> list[dict[str, float]]:
        return [await extractor.features(view, PROPOSAL) for view in views]

    return asyncio.run(all_of())


def groups(features: Mapping[str, float]) -> set[str]:
    return {name.partition(".")[0] for name in features}


def sampler(model: Model) -> PricedModel:
    return PricedModel(model, SLM_PRICE, "slm", 24)


def priced(verifier: Verifier | None) -> PricedVerifier | None:
    return None if verifier is None else PricedVerifier(verifier, SLM_PRICE)


def test_every_instrument_is_asked_in_the_state_that_the_step_is_in() -> None:
    model, verifier = Model(), Verifier()
    extractor = FeatureExtractor(INFERENCE, priced(verifier), sampler(model), num_samples=3)
    first, second = measure(extractor, FIRST, SECOND)
    assert [(r.messages, r.num_samples, r.temperature, r.top_p) for r in model.requests] == [
        (FIRST.messages, 3, 0.5, 0.75),
        (SECOND.messages, 3, 0.5, 0.75),
    ]
    asked = [(len(request.messages), request.action) for request in verifier.requests]
    assert asked[:2] == [(2, OPEN), (2, CLOSE)], "the proposal and the samples, each text once"
    assert asked[2:] == [(4, OPEN), (4, CLOSE), (2, CLOSE)], "and the action before"
    assert verifier.requests[-1].messages == FIRST.messages, "in the state that it was played in"
    assert first["verifier.v_prev"] == 0.0
    assert second["verifier.v_proposal"] == 0.75 - 4 / 64
    assert second["verifier.v_prev"] == pytest.approx((0.75 - 4 / 64) - (0.25 - 2 / 64))
    assert (second["verifier.v_spread"], second["verifier.v_gap12"]) == (0.5, 0.0)
    assert (second["samples.agreement"], second["samples.n_unique"]) == (round(2 / 3, 6), 2.0)
    assert second["samples.support"] == round(1 / 3, 6)
    assert (second["progress.step_fraction"], second["progress.llm_calls_used_fraction"]) == (1 / 8, 0.25)
    assert second["page.obs_changed"] == 1.0 and second["tool.is_open"] == 1.0 and second["tool.is_close"] == 0.0


def test_the_previous_score_is_of_the_latest_action_in_the_state_before_it() -> None:
    verifier = Verifier()
    (third,) = measure(FeatureExtractor(INFERENCE, priced(verifier)), THIRD)
    assert verifier.requests[-1] == ScoreRequest(messages=SECOND.messages, action=OPEN)
    assert third["verifier.v_prev"] == pytest.approx(-2 / 64)


@pytest.mark.parametrize(
    ("verifier", "slm", "num_samples", "there"),
    [
        (None, None, 0, set()),
        (None, Model(), 0, set()),
        (None, None, 3, set()),
        (None, Model(), 3, {"samples"}),
        (Verifier(), None, 3, {"verifier"}),
        (Verifier(), Model(), 2, {"verifier", "samples"}),
    ],
)
def test_a_group_whose_instrument_is_missing_is_left_out(verifier, slm, num_samples, there) -> None:  # type: ignore[no-untyped-def]
    extractor = FeatureExtractor(INFERENCE, priced(verifier), None if slm is None else sampler(slm), num_samples)
    for features in measure(extractor, FIRST, SECOND):
        assert groups(features) == {"uncertainty", "progress", "page", "tool"} | there


def test_nothing_is_sampled_unless_asked_for() -> None:
    model = Model()
    features = measure(FeatureExtractor(INFERENCE, slm=sampler(model)), FIRST)
    assert groups(features[0]) == {"uncertainty", "progress", "page", "tool"} and model.requests == []


def test_one_state_is_measured_once_and_another_one_anew() -> None:
    model, verifier = Model(), Verifier()
    extractor = FeatureExtractor(INFERENCE, priced(verifier), sampler(model), num_samples=2)
    again = measure(extractor, FIRST, FIRST, replace(FIRST, llm_calls=2), replace(FIRST, seed=4), SECOND, FIRST)
    assert again[0] == again[1] == again[5] != again[2]
    assert len(model.requests) == 4, "the LLM's calls so far, the seed and the messages make another state"
    assert [request.key for request in model.requests[1:3]] == [FIRST.key("slm"), replace(FIRST, seed=4).key("slm")]


def test_without_samples_two_seeds_share_a_measurement() -> None:
    verifier = Verifier()
    extractor = FeatureExtractor(INFERENCE, priced(verifier))
    one, other = measure(extractor, FIRST, replace(FIRST, seed=4))
    assert one == other and len(verifier.requests) == 1


def test_a_gate_scores_the_features_of_its_own_step() -> None:
    seen: list[Any] = []

    def score(features: Mapping[str, float], seed: int, task_id: str, step: int) -> float:
        seen.append((dict(features), seed, task_id, step))
        return 0.625

    extractor = FeatureExtractor(INFERENCE, priced(Verifier()))
    assert asyncio.run(ScoreGate(score, extractor)(SECOND, PROPOSAL))[0] == 0.625
    assert seen == [(measure(extractor, SECOND)[0], 3, "t1", 1)]


def billed(view: StepView, asked: Instruments, num_samples: int = 0) -> StepBill:
    extractor = FeatureExtractor(INFERENCE, priced(Verifier()), sampler(Model()), num_samples)
    return asyncio.run(ScoreGate(lambda *_: 0.5, extractor, asked)(view, PROPOSAL))[1]


def test_a_score_is_billed_for_what_it_has_to_ask() -> None:
    """SECOND has 4 messages, so a text costs 400 tokens of reading; its last step was the LLM's or not."""
    after_slm, after_llm = replace(SECOND, llm_steps=()), replace(SECOND, llm_steps=(0,))
    assert billed(after_llm, instruments("entropy_router", ["verifier"])) == StepBill()
    assert billed(after_llm, instruments("random_router", ["verifier"])) == StepBill()
    one = billed(after_llm, instruments("verifier_router", []))
    assert one.tokens == Tokens(verifier_in=400)
    assert one.cost == one.cached_cost == pytest.approx(400 * SLM_PRICE.input / 1e6)
    assert one.seconds == SLM_PRICE.seconds_per_call
    learned = instruments("r2v", ["verifier", "page"])
    assert billed(after_slm, learned).tokens == Tokens(verifier_in=400), "that action was scored when it was proposed"
    assert billed(after_llm, learned).tokens == Tokens(verifier_in=600), "and the LLM's action, in its own state"
    assert billed(after_llm, instruments("r2v", ["page"])) == StepBill()
    sampled = billed(after_slm, instruments("r2v", ["verifier", "samples"]), num_samples=3)
    assert sampled.tokens == Tokens(slm_in=10, slm_out=5, verifier_in=800), "two distinct texts of four"
