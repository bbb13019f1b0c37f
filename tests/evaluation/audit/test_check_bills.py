"""Bills held to their tokens, prices and seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import load
from r2v.data.episode import Episode, EpisodeMetadata, Tokens
from r2v.evaluation.audit.check_bills import Bills
from r2v.evaluation.settings import EvaluateSettings


@pytest.mark.parametrize(
    ("tokens_in", "factor", "wrong"), [(1000, 1.0, 0), (1000, 1.5, 1), (10**6, 2.0, 0), (10**6, 2.1, 1)]
)
def test_a_bill_may_hold_the_surcharge_of_long_prompts_and_no_more(tokens_in: int, factor: float, wrong: int) -> None:
    """gpt-6-luna's prompts cost twice as much above 272,000 tokens; which of them were so long is not recorded."""
    settings = EvaluateSettings.of(load(None, ["teacher.provider=openai", "teacher.model_name=gpt-6-luna"]))
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
    assert len(list(Bills.of(settings).problems(episode, episode.tokens, 0.0, set()))) == 2 * wrong


def billed(tokens: Tokens, seconds: float = 0.0) -> Episode:
    """An episode of the expert's at the configured prices, 0.5 and 2 USD a million tokens by default."""
    prices = EvaluateSettings.of(load()).cost
    usd = (tokens.llm_in * prices.llm.input + tokens.llm_out * prices.llm.output) / 1e6
    usd += (tokens.slm_in * prices.slm.input + tokens.slm_out * prices.slm.output) / 1e6
    return Episode(
        episode_id="e",
        metadata=EpisodeMetadata(task_id="t", goal="g", benchmark="desk", seed=1, split="eval"),
        steps=(),
        success=True,
        tokens=tokens,
        total_cost=usd,
        cached_cost=usd,
        sim_time_seconds=seconds,
    )


def test_tokens_are_those_of_the_replay_or_where_they_cannot_be_counted_more() -> None:
    bills = Bills.of(EvaluateSettings.of(load()))
    counted = Tokens(slm_in=40, slm_out=8)
    assert list(bills.problems(billed(counted), counted, 0.0, set())) == []
    more = billed(replace(counted, slm_in=50))
    assert [kind for kind, _ in bills.problems(more, counted, 0.0, set())] == ["tokens"]
    assert list(bills.problems(more, counted, 0.0, {"slm_in"})) == []
    fewer = billed(replace(counted, slm_in=30))
    assert [kind for kind, _ in bills.problems(fewer, counted, 0.0, {"slm_in"})] == ["tokens"]


def test_seconds_follow_from_the_replay_and_the_tokens_that_it_does_not_count() -> None:
    settings = EvaluateSettings.of(load())
    bills, tokens = Bills.of(settings), Tokens(slm_in=40, slm_out=8)
    more = 8 * settings.cost.slm_price.seconds_per_token
    assert list(bills.problems(billed(tokens, 1.5 + more), replace(tokens, slm_out=0), 1.5, {"slm_out"})) == []
    found = list(bills.problems(billed(tokens, 1.5), tokens, 1.0, set()))
    assert [kind for kind, _ in found] == ["sim_time_seconds"]
