"""The LLM's context: what is sent fits by the estimate, begins like what was sent before, and says what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from r2v.config import CostConfig, TeacherConfig
from r2v.config.llm_model import ModelConfig
from r2v.envs.desk import Desk
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.policy.half_elision import ELIDED
from r2v.policy.prompt_encoder import build_messages
from r2v.rollout.llm_context import BYTES, FittedModel, estimated, fitted
from r2v.rollout.model_factory import priced_teacher
from r2v.wire.message import Message, ToolSpec

LIVING = ModelConfig(retires="never")
TOOLS = (ToolSpec(name="click", description="Click on an element."),)


def _request(pages: Sequence[str], tools: tuple[ToolSpec, ...] = TOOLS) -> Request:
    messages = build_messages("buy a lamp", pages, ["click [1]"] * (len(pages) - 1))
    return Request(messages=messages, key=(), tools=tools, max_tokens=100)


def _tokens(messages: Sequence[Message]) -> int:
    return sum(map(estimated, messages))


def test_what_fits_is_sent_as_it_is() -> None:
    request = _request(["page"] * 3)
    assert fitted(request, 1000) is request


def test_a_longer_conversation_keeps_its_beginning_from_step_to_step() -> None:
    pages = [f"page {i} " + "é" * 900 for i in range(30)]
    sent = [fitted(_request(pages[: t + 1]), 6000).messages for t in range(30)]
    assert all(_tokens(messages) <= 5900 for messages in sent)
    assert all(messages[-1].content == page for messages, page in zip(sent, pages, strict=True))
    assert sum(b[: len(a)] == a for a, b in pairwise(sent)) >= 23
    assert any(message.content == ELIDED for message in sent[-1])
    assert fitted(_request(pages), 6000).messages == sent[-1], "the same cut at once"


def test_a_page_that_is_too_long_has_its_middle_cut_and_says_so() -> None:
    page = "begin " + "ü" * 60_000 + " end"
    shown = fitted(_request([page, page]), 5000).messages
    assert shown[1].content == ELIDED and f"\n{ELIDED}\n" in shown[-1].content
    assert shown[-1].content.startswith("begin ü") and shown[-1].content.endswith("ü end")
    assert 0.9 * 4900 < _tokens(shown) <= 4900


def test_a_goal_that_is_too_long_is_left_to_the_provider() -> None:
    request = Request(messages=(Message(role="user", content="x" * 9000),), key=(), max_tokens=100)
    assert fitted(request, 1024) is request
    with_page = Request(messages=(*request.messages, Message(role="tool", content="y" * 9000)), key=(), max_tokens=100)
    assert fitted(with_page, 1024) is with_page


def test_tools_and_the_reply_take_their_part_of_the_context() -> None:
    pages = ["p" * 300] * 5
    size = _tokens(_request(pages).messages)
    many = tuple(ToolSpec(name=f"tool{i}", description="d" * 60) for i in range(10))
    context = size + 100 + 200
    assert fitted(_request(pages), context).messages == _request(pages).messages
    assert len(fitted(_request(pages, many), context).messages[1].content) < 300


class _Remembering:
    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def reply(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(samples=(Sample(text="click [1]"),), usage=Usage(), model="m")


def test_the_model_is_asked_what_fits_and_nothing_else_changes() -> None:
    inner = _Remembering()
    request = _request(["p" * 4000] * 6)
    asyncio.run(FittedModel(inner, 3000, "m").reply(request))
    assert inner.asked == [fitted(request, 3000)] and inner.asked[0].messages != request.messages
    assert (inner.asked[0].tools, inner.asked[0].max_tokens) == (request.tools, request.max_tokens)


@pytest.mark.parametrize(
    ("given", "context"),
    [({}, 128_000), ({"context": 9_000}, 9_000), ({"model_name": "m", "usd_in": 1.0, "usd_out": 1.0}, None)],
)
def test_the_context_is_the_one_given_or_the_tables(
    given: dict[str, object], context: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    teacher = TeacherConfig(**{"provider": "openai", "model_name": "gpt-4o", "model": LIVING, **given})  # type: ignore[arg-type]
    model = priced_teacher(teacher, CostConfig(), Desk(num_tasks=60, num_heldout=0), Waves()).model
    assert (model.context if isinstance(model, FittedModel) else None) == context


def test_three_bytes_are_a_token() -> None:
    assert (
        estimated(Message(role="tool", content="é" * 30)) - estimated(Message(role="tool", content="")) == 60 // BYTES
    )
