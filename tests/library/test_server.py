"""Server and Teacher: the official client calls a server of the library, and the library calls a provider."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from r2v import Config, Message, Server, Teacher, load_config
from r2v.emulator import Emulator
from r2v.errors import UsageError
from tests.serve.stub import reply, stub

TOOLS = [{"type": "function", "function": {"name": "list_tickets", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return Emulator(answer="desk", models=["big-1"])


def config(emulator: Emulator, **more: object) -> Config:
    teacher = {"provider": "openai", "model_name": "big-1", "base_url": emulator.openai_url, "usd_in": 1.0}
    teacher |= {"usd_out": 4.0, "mode": "concurrent", "preflight": False, "model": {"tools": "everywhere"}}
    return load_config({"teacher": teacher | more, "serve": {"port": 0}})


def test_a_server_in_the_callers_loop_answers_the_official_client(emulator: Emulator, tmp_path: Path) -> None:
    async def play() -> str:
        server = await Server(config(emulator), root=tmp_path).start()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client:
            reply = await client.chat.completions.create(
                model="big-1", messages=[{"role": "user", "content": "Close ticket 4."}], max_tokens=64
            )
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="sk-wrong-key-of-another").models.list()
        await server.stop()
        assert server.url == ""
        return reply.choices[0].message.content or ""

    with emulator:
        assert asyncio.run(play())
        assert len(emulator.ledger().bills) == 1


def test_the_teacher_is_paid_once_for_a_question(emulator: Emulator, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Close ticket 4."}]
    with emulator:
        teacher = Teacher(config(emulator, max_usd=1.0), root=tmp_path)
        first = asyncio.run(teacher.reply(messages))
        again = asyncio.run(Teacher(config(emulator, max_usd=1.0), root=tmp_path).reply(messages))
        assert isinstance(first, Message) and first.text == again.text
        assert len(emulator.ledger().bills) == 1
        asyncio.run(teacher.reply(messages, draw=1))
        assert len(emulator.ledger().bills) == 2


def said(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {"id": "c1", "object": "chat.completion", "model": "big-1", "choices": choices, "usage": usage}


def test_the_teacher_hears_the_conversation_as_it_is_and_other_tools_are_another_question(
    emulator: Emulator, tmp_path: Path
) -> None:
    messages = [{"role": "system", "content": "One word."}, {"role": "user", "content": "Close ticket 4."}]
    with emulator, stub(lambda seen: reply(said("Done."))) as provider:
        teacher = Teacher(config(emulator, base_url=f"{provider.url}/v1", max_usd=1.0), root=tmp_path)
        for tools in ([], TOOLS, TOOLS):
            assert asyncio.run(teacher.reply(messages, tools)).text == "Done."
    assert [seen.json["messages"] for seen in provider.seen] == [messages, messages]
    assert ["tools" in seen.json for seen in provider.seen] == [False, True]


def test_a_scripted_teacher_is_refused() -> None:
    with pytest.raises(UsageError, match="answers only its own benchmark; name a provider"):
        Teacher(load_config())


def test_a_teacher_that_is_billed_needs_a_cap(emulator: Emulator, tmp_path: Path) -> None:
    with emulator, pytest.raises(UsageError, match="teacher.max_usd is not set, and big-1 is billed"):
        Teacher(config(emulator, base_url="https://llm.example/v1"), root=tmp_path)


@pytest.mark.parametrize("messages", ["Close ticket 4.", [{"role": "user", "content": {1, 2}}], [["user", "x", "y"]]])
def test_what_is_no_list_of_messages_is_refused_in_a_line(messages: Any, emulator: Emulator, tmp_path: Path) -> None:
    with emulator:
        teacher = Teacher(config(emulator, max_usd=1.0), root=tmp_path)
        with pytest.raises(UsageError, match="messages or tools: not as Chat Completions writes them"):
            asyncio.run(teacher.reply(messages))
        assert emulator.ledger().bills == ()
