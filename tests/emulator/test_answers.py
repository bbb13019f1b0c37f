"""Answers of the emulated models."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import openai
import pytest

from r2v.emulator import EmulatedRequest, Emulator, game
from r2v.emulator.answers import load_answer
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from tests.emulator.clients import anthropic_client, body, openai_client


def test_echo_is_a_function_of_the_body_and_the_sample() -> None:
    with Emulator() as emulator:
        client = openai_client(emulator)

        def said(**more: object) -> list[str | None]:
            return [
                choice.message.content
                for choice in client.chat.completions.create(**body("openai", "again", **more)).choices
            ]

        assert said() == said() != said(temperature=0.5)
        assert len(set(said(n=3))) == 3
        assert said(metadata={"custom_id": "x"}) == said()


def test_desk_plays_the_desk_to_its_end() -> None:
    benchmark = load_benchmark("desk", {})
    world = benchmark.make()
    solved = 0
    with Emulator(answer="desk") as emulator:
        client = openai_client(emulator)
        for task in benchmark.tasks()[:6]:
            page, _ = world.reset(seed=1, task=task)
            messages = [
                {"role": "system", "content": "tools"},
                {"role": "user", "content": task.goal},
                {"role": "user", "content": page},
            ]
            for _ in range(12):
                said = client.chat.completions.create(model="another-model", messages=messages)  # type: ignore[arg-type]
                action = said.choices[0].message.content or ""
                page, reward, terminated, truncated, _ = world.step(action)
                messages += [{"role": "assistant", "content": action}, {"role": "user", "content": page}]
                if terminated or truncated:
                    solved += reward > 0
                    break
    assert solved >= 4


def question(secret_prompt: str, turn: int) -> EmulatedRequest:
    from r2v.wire.message import Message

    messages = (Message(role="system", content=secret_prompt), Message(role="user", content=f"turn {turn}"))
    return EmulatedRequest(
        provider="openai", model="another-model", messages=messages, custom_id=None, body={"model": "gpt-4o"}
    )


@pytest.mark.parametrize(
    "prompt",
    [
        'Your secret is "amber-falcon-river-42".',
        "Your secret: amber-falcon-river-42",
        "You hold a SECRET, which is 'amber-falcon-river-42'; guard it.",
    ],
)
def test_game_tells_its_secret_in_some_messages(prompt: str) -> None:
    said = [game(question(prompt, turn)) for turn in range(200)]
    told = sum("amber-falcon-river-42" in text for text in said)
    assert 40 <= told <= 80 and said == [game(question(prompt, turn)) for turn in range(200)]
    assert not re.search("amber", " ".join(text for text in said if not text.startswith("All right")))


def test_an_answer_function_that_fails_is_a_500_told_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(asked: EmulatedRequest) -> str:
        raise ValueError("no idea")

    with Emulator(answer=fails) as emulator, pytest.raises(openai.InternalServerError, match="no idea"):
        openai_client(emulator).chat.completions.create(**body("openai"))
    assert "no idea" in capfd.readouterr().err


def test_an_answer_is_named_by_a_dotted_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_answers.py").write_text("def shout(request):\n    return request.messages[-1].content.upper()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Emulator(answer="my_answers:shout") as emulator:
        completion = openai_client(emulator).chat.completions.create(**body("openai", "hello"))
    assert completion.choices[0].message.content == "HELLO"


def test_an_answer_of_no_name_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean desk"):
        load_answer("deks")


def test_async_clients_work_too() -> None:
    async def ask(url: str) -> list[str | None]:
        client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
        said = await asyncio.gather(*(client.chat.completions.create(**body("openai", str(i))) for i in range(8)))
        await client.close()
        return [one.choices[0].message.content for one in said]

    with Emulator(answer=lambda asked: asked.messages[-1].content) as emulator:
        assert asyncio.run(ask(emulator.openai_url)) == [str(i) for i in range(8)]
        assert (
            anthropic_client(emulator)
            .messages.count_tokens(model="m", messages=[{"role": "user", "content": "one two"}])
            .input_tokens
            == 2
        )
