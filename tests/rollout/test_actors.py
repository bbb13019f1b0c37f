"""Actors: the model that acts, the calls of the LLM, and the bills."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from r2v.config import InferenceConfig, Price
from r2v.llm.scripted import ScriptedBackend, count_tokens
from r2v.llm.types import Reply, Request, ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.actors import Act, Actor, BestOfK, GreedyActor, PricedModel, PricedVerifier, Routed, StepView
from r2v.rollout.bill import StepBill
from r2v.wire.message import Message

SLM = Price(input=1.0, output=2.0, seconds_per_call=0.5, seconds_per_token=0.25)
LLM = Price(input=100.0, output=200.0, seconds_per_call=3.0, seconds_per_token=1.0)
GOAL = "go through the door"


def turn(llm_calls: int = 0) -> StepView:
    return StepView(
        task_id="t",
        seed=3,
        step=4,
        max_steps=9,
        goal=GOAL,
        observations=("a door",),
        actions=(),
        messages=(Message(role="user", content=GOAL), Message(role="tool", content="a door")),
        tools=(),
        llm_calls=llm_calls,
    )


def sides(waves: Waves) -> tuple[PricedModel, PricedModel]:
    def speak(name: str, request: Request) -> str:
        return f"{name} {request.key[-1]}"

    backends = [
        ScriptedBackend(partial(speak, name), name=name, price=price)
        for name, price in (("small", SLM), ("large", LLM))
    ]
    return PricedModel(waves.model(backends[0]), SLM, "slm", 8), PricedModel(waves.model(backends[1]), LLM, "llm", 8)


def act(actor: Actor, waves: Waves, at: StepView) -> Act:
    return waves.run([lambda: actor.act(at)])[0]  # type: ignore[list-item,return-value]


def routed(waves: Waves, score: float | None, threshold: float, max_llm_calls: int = 5) -> Routed:
    async def gate(at: StepView, proposal: Reply) -> tuple[float, StepBill]:
        assert score is not None, "nobody may consult this gate"
        assert proposal.text == "small slm"
        return score, StepBill()

    return Routed(*sides(waves), gate, threshold, max_llm_calls)


RULE = [  # escalate iff threshold <= 0, or threshold < 1 and score >= threshold
    (0.0, None, True),
    (-1.0, None, True),
    (1.0, None, False),
    (2.0, None, False),
    (0.5, 0.5, True),
    (0.5, 0.499999, False),
    (0.5, 0.4999999, True),
    (0.5, 1.0, True),
    (0.5, 0.0, False),
    (1e-6, 0.0, False),
    (0.999999, 0.999999, True),
    (0.999999, 1.0, True),
]


@pytest.mark.parametrize(("threshold", "score", "escalated"), RULE)
def test_the_decision_rule(threshold: float, score: float | None, escalated: bool) -> None:
    """At both ends no gate is consulted; scores are compared as they are recorded, to 6 decimals and below 1."""
    waves = Waves()
    done = act(routed(waves, score, threshold), waves, turn())
    assert (done.text, done.source) == (("large llm", "llm_fallback") if escalated else ("small slm", "slm"))
    assert done.decision is not None
    assert (done.decision.escalated, done.decision.threshold) == (escalated, threshold)
    assert done.decision.p_escalate == (None if score is None else min(round(score, 6), 1 - 1e-6))


@pytest.mark.parametrize(
    ("spent", "threshold", "score", "reason", "escalated"),
    [
        (4, 0.5, 0.9, "router", True),
        (5, 0.5, 0.9, "budget", False),
        (6, 0.5, 0.9, "budget", False),
        (5, 0.5, 0.1, "router", False),
        (5, 0.0, None, "router", True),
        (5, 1.0, None, "router", False),
    ],
)
def test_a_spent_budget_keeps_the_small_policys_action(
    spent: int, threshold: float, score: float | None, reason: str, escalated: bool
) -> None:
    waves = Waves()
    done = act(routed(waves, score, threshold), waves, turn(llm_calls=spent))
    assert done.decision is not None
    assert (done.decision.reason, done.decision.escalated) == (reason, escalated)
    assert done.source == ("llm_fallback" if escalated else "slm")


def bill(price: Price, text: str) -> tuple[float, float, int, int]:
    tokens_in, tokens_out = count_tokens(GOAL) + count_tokens("a door"), count_tokens(text)
    return (
        (tokens_in * price.input + tokens_out * price.output) / 1e6,
        price.seconds_per_call + price.seconds_per_token * tokens_out,
        tokens_in,
        tokens_out,
    )


def test_single_is_billed_by_its_side() -> None:
    waves = Waves()
    slm, llm = sides(waves)
    for one, price in ((GreedyActor(slm, "slm"), SLM), (GreedyActor(llm, "teacher"), LLM)):
        done = act(one, waves, turn())
        cost, seconds, tokens_in, tokens_out = bill(price, done.text)
        assert (done.bill.cost, done.bill.seconds, done.decision) == (pytest.approx(cost), pytest.approx(seconds), None)
        tokens = done.bill.tokens
        ours = (tokens.slm_in, tokens.slm_out, tokens.llm_in, tokens.llm_out)
        assert ours == ((tokens_in, tokens_out, 0, 0) if price is SLM else (0, 0, tokens_in, tokens_out))


def test_an_escalated_step_pays_for_both() -> None:
    waves = Waves()
    done = act(routed(waves, 0.9, 0.5), waves, turn())
    small, large = bill(SLM, "small slm"), bill(LLM, "large llm")
    assert done.bill.cost == pytest.approx(small[0] + large[0])
    assert done.bill.seconds == pytest.approx(small[1] + large[1])
    assert (done.bill.tokens.slm_in, done.bill.tokens.slm_out) == small[2:]
    assert (done.bill.tokens.llm_in, done.bill.tokens.llm_out) == large[2:]


def test_both_ends_are_billed_as_the_single_models() -> None:
    for threshold, name in ((1.0, "slm"), (0.0, "llm")):
        waves = Waves()
        slm, llm = sides(waves)
        one = act(GreedyActor(slm, "slm") if name == "slm" else GreedyActor(llm, "llm_fallback"), waves, turn())
        both = act(routed(waves, None, threshold), waves, turn())
        assert (both.text, both.source, both.bill) == (one.text, one.source, one.bill)


def best_of(scores: list[float], k: int) -> Act:
    waves, asked = Waves(), list[str]()
    texts = ["b", "a", "b", "c"]
    backend = ScriptedBackend(lambda request: texts[int(request.key[-1])], name="small", price=SLM)

    async def score(request: ScoreRequest) -> ScoreReply:
        await asyncio.sleep(0)
        asked.append(request.action)
        return ScoreReply(score=scores[texts.index(request.action)], tokens_in=50)

    actor = BestOfK(PricedModel(waves.model(backend), SLM, "slm", 8), PricedVerifier(score, SLM), InferenceConfig(), k)
    done = act(actor, waves, turn())
    assert asked == list(dict.fromkeys(texts[:k])), "each distinct action is judged once"
    return done


@pytest.mark.parametrize(
    ("scores", "k", "text", "index"),
    [
        ([0.1, 0.9, 0.1, 0.5], 4, "a", 1),
        ([0.9, 0.1, 0.9, 0.5], 4, "b", 0),
        ([0.5, 0.5, 0.5, 0.5], 4, "b", 0),
        ([0.1, 0.2, 0.1, 0.9], 3, "a", 1),
        ([0.1, 0.2, 0.1, 0.9], 4, "c", 3),
        ([0.0, 0.9, 0.0, 0.9], 1, "b", 0),
    ],
)
def test_best_of_k_plays_the_verifiers_favourite(scores: list[float], k: int, text: str, index: int) -> None:
    done = best_of(scores, k)
    assert (done.text, done.source) == (text, "slm")
    assert done.decision is not None
    assert (done.decision.chosen_index, done.decision.escalated) == (index, False)
    assert [candidate.text for candidate in done.decision.candidates] == ["b", "a", "b", "c"][:k]
    assert done.bill.tokens.slm_out == k, "every sample is paid for"
    judged = len(set(["b", "a", "b", "c"][:k]))
    assert done.bill.tokens.verifier_in == 50 * judged, "and so is every reading of the verifier"
    tokens_in = count_tokens(GOAL) + count_tokens("a door")
    expected = (tokens_in + 50 * judged) * SLM.input + k * SLM.output
    assert done.bill.cost == done.bill.cached_cost == pytest.approx(expected / 1e6)
    assert done.bill.seconds == pytest.approx(2 * SLM.seconds_per_call + k * SLM.seconds_per_token)
