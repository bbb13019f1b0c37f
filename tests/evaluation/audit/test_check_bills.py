"""Bills counted again: the tokens that an audit counts are those that the small policy was billed for."""

from __future__ import annotations

import pytest

from r2v.config import load
from r2v.data.episode import Episode, EpisodeMetadata, Tokens
from r2v.envs.base import load_benchmark
from r2v.evaluation.audit.check_bills import Biller
from r2v.evaluation.settings import EvaluateSettings
from r2v.policy.prompts.prompt_encoder import Encoder, build_messages
from r2v.rollout.session import episode_specs
from r2v.storage.weights import BUNDLED
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
"""Texts that stand where a page or an action should."""


def conversations() -> list[tuple[Message, ...]]:
    """First pages of the desk, and whatever a stranger's folder may hold."""
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
    biller = Biller.of(settings, load_benchmark("desk", {}))
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED[name])
    played = Encoder(tokenizer, max_seq_len=settings.policy.max_seq_len, reserve=settings.inference.max_new_tokens)
    assert biller.encode is not None and biller.spelling is not None
    spelt = 0
    for messages in conversations():
        assert biller.encode(messages) == played(messages)
        for message in messages:
            ids = played.action_ids(message.content)[:-1]
            if tokenizer.decode(ids, skip_special_tokens=True) == message.content and len(ids) <= played.reserve:
                assert biller.spelling.count(message.content) == (len(ids), len(ids))
                spelt += 1
    assert spelt


@pytest.mark.parametrize(
    ("tokens_in", "factor", "wrong"), [(1000, 1.0, 0), (1000, 1.5, 1), (10**6, 2.0, 0), (10**6, 2.1, 1)]
)
def test_a_bill_may_hold_the_surcharge_of_long_prompts_and_no_more(tokens_in: int, factor: float, wrong: int) -> None:
    """gpt-6-luna's prompts cost twice as much above 272,000 tokens; which of them were so long is not recorded."""
    settings = EvaluateSettings.of(load(None, ["teacher.provider=openai", "teacher.model_name=gpt-6-luna"]))
    biller = Biller.of(settings, load_benchmark("desk", {}))
    usd = factor * 0.1 * tokens_in / 1e6
    episode = Episode(
        episode_id="e",
        metadata=EpisodeMetadata(task_id="t", goal="g", benchmark="desk", seed=1, split="eval"),
        steps=(),
        success=True,
        tokens=Tokens(llm_in=tokens_in),
        total_cost=usd,
        cached_cost=usd,
    )
    assert len(list(biller._money(episode))) == 2 * wrong
