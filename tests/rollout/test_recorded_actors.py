"""Recorded actors: an evaluation's actors over the replies and scores that an episode recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import load
from r2v.data.action import parse_action
from r2v.data.episode import Candidate, Decision, Observation, Proposal, Step, Tokens
from r2v.envs.base import load_benchmark
from r2v.evaluation.audit.verify import actors_of as recorded
from r2v.evaluation.settings import EvaluateSettings
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.rollout.actors import StepView
from r2v.rollout.recorded_actors import NoRecord, RecordedActors
from r2v.rollout.session import episode_specs
from r2v.storage.weights import BUNDLED
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message

HOSTILE = (
    "",
    " ",
    "<eos>",
    "a<act>b<pad><goal>",
    "\x00\ud7ff",
    "ё" * 50,
    '{"tool":"look"}}}\n{',
    "x" * 3000,
    "<ob<obs>s>",
)
"""Texts in the place of a page or an action."""


def conversations() -> list[tuple[Message, ...]]:
    """Return conversations of first pages of the desk, and of texts that a third party's folder may hold."""
    desk = load_benchmark("desk", {"num_tasks": 60})
    pages = []
    for spec in episode_specs(desk, "train", [1], EvaluateSettings.of(load()).calibration, method="", limit=20):
        page, _ = desk.make().reset(seed=1, task=spec.task)
        pages.append(page)
    said = [*pages, *HOSTILE]
    return [build_messages(f"do {text}", [text, other], [other]) for text, other in zip(said, said[::-1], strict=True)]


@pytest.mark.parametrize("name", BUNDLED)
def test_tokens_are_those_of_the_tokenizer_that_the_policy_has(name: str) -> None:
    from transformers import AutoTokenizer

    settings = EvaluateSettings.of(load(None, [f"policy.model_name={name}"]))
    actors = recorded(settings, load_benchmark("desk", {}))
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED[name])
    played = Encoder(tokenizer, max_seq_len=settings.policy.max_seq_len, reserve=settings.inference.max_new_tokens)
    assert actors.encode is not None
    for messages in conversations():
        assert actors.encode(messages) == played(messages)


DESK = load_benchmark("desk", {"num_tasks": 60})
LOOK = '{"tool":"more"}'


def actors(*overrides: str) -> RecordedActors:
    settings = EvaluateSettings.of(load(None, ["policy.model_name=tiny", "inference.num_candidates=2", *overrides]))
    return recorded(settings, DESK)


def first_view() -> StepView:
    """Return the first step of a task of the desk."""
    (spec, *_) = episode_specs(DESK, "train", [1], EvaluateSettings.of(load()).calibration, method="", limit=1)
    page, _ = DESK.make().reset(seed=1, task=spec.task)
    return StepView(
        task_id=spec.task.task_id,
        seed=1,
        step=0,
        max_steps=8,
        goal=spec.task.goal,
        observations=(page,),
        actions=(),
        messages=build_messages(spec.task.goal, [page], []),
        tools=(),
    )


def step(decision: Decision | None = None, source: str = "slm", proposed: str = LOOK) -> Step:
    return Step(
        step_idx=0,
        observation=Observation(raw_text=""),
        action=parse_action(LOOK),
        action_source=source,  # type: ignore[arg-type]
        decision=decision,
        proposal=Proposal(text=proposed, tokens_in=1, tokens_out=2),
    )


def test_a_routed_step_is_decided_by_the_recorded_score_and_the_threshold() -> None:
    played, view = actors(), first_view()
    prompt = len(played.encode(view.messages)) if played.encode is not None else 0
    below = played.act(view, "entropy_router", step(Decision(p_escalate=0.25, threshold=0.5)), 0.5)
    assert (below.text, below.source, below.decision) == (LOOK, "slm", Decision(p_escalate=0.25, threshold=0.5))
    assert below.bill.tokens == Tokens(slm_in=prompt, slm_out=2), "the prompt is counted, not believed"
    above = played.act(view, "entropy_router", step(Decision(p_escalate=0.75, threshold=0.5)), 0.5)
    assert above.source == "llm_fallback" and above.bill.tokens.llm_in > 0
    expert = played.expert_reply(view)
    assert expert is not None and above.text == expert.text


def test_a_router_that_looks_at_nothing_draws_its_score_again() -> None:
    act = actors().act(first_view(), "random_router", step(Decision(p_escalate=0.5, threshold=0.5)), 0.5)
    assert act.decision is not None and act.decision.p_escalate not in (None, 0.5)


def test_the_verifier_is_billed_where_the_method_asks_it() -> None:
    played, view = actors(), first_view()
    made = step(Decision(p_escalate=0.25, threshold=0.5))
    read = played.act(view, "verifier_router", made, 0.5).bill.tokens.verifier_in
    assert played.encode is not None and read == len(played.encode(view.messages)) + len(played.encode.action_ids(LOOK))
    assert played.act(view, "entropy_router", made, 0.5).bill.tokens.verifier_in == 0


def test_the_best_of_the_recorded_candidates_is_played() -> None:
    candidates = (Candidate(text="a", logprob=-1.0, score=0.25), Candidate(text=LOOK, logprob=-2.0, score=0.75))
    act = actors().act(first_view(), "best_of_k", step(Decision(candidates=candidates, chosen_index=0)), None)
    assert act.text == LOOK and act.decision == Decision(candidates=candidates, chosen_index=1)


@pytest.mark.parametrize(
    ("method", "decision", "threshold", "said"),
    [
        ("entropy_router", None, 0.5, "p_escalate None is no score"),
        ("entropy_router", Decision(p_escalate=1.5, threshold=0.5), 0.5, "p_escalate 1.5 is no score"),
        ("entropy_router", Decision(p_escalate=0.5), None, "no threshold of entropy_router"),
        ("best_of_k", None, None, "0 candidates are recorded, 2 are drawn"),
        ("best_of_k", Decision(candidates=(Candidate(text="", score=2.0),) * 2), None, "score 2.0 is not in"),
        (
            "best_of_k",
            Decision(candidates=(Candidate(text="", score=0.5, logprob=1.0),) * 2),
            None,
            "log-probability 1",
        ),
    ],
)
def test_a_step_without_what_its_method_acts_by_is_named(
    method: str, decision: Decision | None, threshold: float | None, said: str
) -> None:
    with pytest.raises(NoRecord, match=said):
        actors().act(first_view(), method, step(decision), threshold)


def test_tokens_that_nothing_here_can_count_are_those_of_the_step() -> None:
    view = first_view()
    sampled = replace(step(Decision(p_escalate=0.25, threshold=0.5)), tokens=Tokens(slm_in=9, slm_out=7, verifier_in=5))
    drawing = actors("router.features=[uncertainty,samples,verifier]")
    assert drawing.encode is not None
    prompt, bill = len(drawing.encode(view.messages)), drawing.act(view, "r2v", sampled, 0.5).bill
    assert bill.tokens == Tokens(slm_in=2 * prompt, slm_out=7, verifier_in=5), "a prompt for the reply, one for samples"
    asked = actors("teacher.provider=openai", "teacher.model_name=gpt-6-luna")
    said = replace(step(source="llm_fallback"), tokens=Tokens(llm_in=300_000, llm_out=10))
    act, rate = asked.act(view, "llm_only", said, None), asked.llm.rate
    assert rate is not None and rate.surcharge_above == 272_000 and act.bill.tokens.llm_in == 300_000
    assert act.bill.cost == rate.listed(TokenCounts(fresh=300_000, output=10)) > 300_000 * rate.input / 1e6
    unknown = replace(actors(), encode=None).act(view, "verifier_router", sampled, 0.5).bill.tokens
    assert (unknown.slm_in, unknown.verifier_in) == (1, 5)


@pytest.mark.parametrize("tokens", [Tokens(slm_in=-9), Tokens(slm_out=-1), Tokens(verifier_in=-1)])
def test_a_negative_count_is_named(tokens: Tokens) -> None:
    made = replace(step(Decision(p_escalate=0.25, threshold=0.5)), tokens=tokens)
    with pytest.raises(NoRecord, match="recorded"):
        replace(actors("router.features=[samples,verifier]"), encode=None).act(first_view(), "r2v", made, 0.5)
