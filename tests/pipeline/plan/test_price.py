"""Dollars of a stage: tokens at the list price, or unknown."""

from __future__ import annotations

import math

import pytest

from r2v.config import load
from r2v.llm.providers.prices import rate_of
from r2v.pipeline.plan.price import basis, dollars, longest_prompt, mean_prompt
from r2v.pipeline.plan.workload import Workload

ASKED = Workload(llm=10, llm_in=2e6, llm_out=1e6)


def test_tokens_at_the_list_price() -> None:
    """Ten prompts of 200,000 tokens, each below the length at which prices rise."""
    rate = rate_of("openai", "gpt-6-luna")
    config = load(None, ["teacher.provider=openai", "teacher.model_name=gpt-6-luna", "teacher.max_usd=12"])
    assert dollars(ASKED, config) == pytest.approx(2 * rate.input + rate.output)
    assert "list price of gpt-6-luna by genai-prices " in basis(config) and "stops a collection at $12.00" in basis(
        config
    )
    own = load(None, ["teacher.provider=openai", "teacher.model_name=x", "teacher.usd_in=1", "teacher.usd_out=4"])
    assert dollars(ASKED, own) == pytest.approx(6.0) and "by teacher.usd_in and teacher.usd_out" in basis(own)


def test_an_expert_is_free_and_a_model_without_a_price_is_said_to_be_one() -> None:
    assert dollars(ASKED, load(None)) == 0 and "expert" in basis(load(None))
    config = load(None, ["teacher.provider=openai", "teacher.model_name=gpt-of-tomorrow"])
    assert dollars(ASKED, config) is None and "set teacher.usd_in and teacher.usd_out" in basis(config)
    assert dollars(Workload(steps=3), config) == 0


def test_an_llm_is_shown_what_its_context_leaves_beside_the_reply() -> None:
    known = load(None, ["teacher.provider=openai", "teacher.model_name=gpt-6-luna", "teacher.max_tokens=1000"])
    assert longest_prompt(known.teacher) == rate_of("openai", "gpt-6-luna").context - 1000
    own = load(None, ["teacher.provider=openai", "teacher.model_name=x", "teacher.context=8000", "teacher.usd_in=1"])
    assert longest_prompt(own.teacher) == 8000 - own.teacher.max_tokens
    assert longest_prompt(load(None).teacher) == math.inf


def test_the_mean_prompt_is_that_of_its_pages() -> None:
    assert mean_prompt(100, 10, 1, 1, 1000) == 110
    assert mean_prompt(100, 10, 1, 3, 1000) == 100 + 20 + 1
    assert mean_prompt(100, 1000, 0, 10, 500) == 500
