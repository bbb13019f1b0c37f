"""The encoder: remembered segments equal the template, and what must stay stays."""

from __future__ import annotations

import pytest

from r2v.errors import InputError, UsageError
from r2v.llm.types import Message
from r2v.policy.prompt_encoder import ELIDED, Encoder, build_messages
from tests import tiny_models


def _conversation(steps: int, words: int = 6) -> tuple[Message, ...]:
    observations = [" ".join(f"w{(s * 7 + i) % 48}" for i in range(words)) for s in range(steps + 1)]
    return build_messages("open door w1", observations, [f"get w{s % 48}" for s in range(steps)], system="done")


def _encoder(max_seq_len: int = 200, reserve: int = 8, template: str = tiny_models.TEMPLATE) -> Encoder:
    return Encoder(tiny_models.tokenizer(template), max_seq_len=max_seq_len, reserve=reserve)


def _full(encoder: Encoder, messages: tuple[Message, ...]) -> list[int]:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    ids: list[int] = encoder.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return ids


def test_messages_alternate_and_end_in_the_newest_observation() -> None:
    messages = build_messages("goal", ["o0", "o1"], ["a0"])
    assert [(m.role, m.content) for m in messages] == [
        ("user", "goal"),
        ("tool", "o0"),
        ("assistant", "a0"),
        ("tool", "o1"),
    ]
    with pytest.raises(ValueError):
        build_messages("goal", ["o0"], ["a0"])


def test_segments_joined_equal_the_template() -> None:
    encoder = _encoder()
    assert encoder.concatenative
    for steps in range(6):
        assert encoder(_conversation(steps)) == _full(encoder, _conversation(steps))


def test_a_template_that_looks_around_is_rendered_whole() -> None:
    counting = tiny_models.TEMPLATE.replace("{{ m.content }}", "w{{ messages | length }} {{ m.content }}")
    encoder = _encoder(template=counting)
    assert not encoder.concatenative
    assert encoder(_conversation(3)) == _full(encoder, _conversation(3))


def test_a_template_without_tool_role_gets_user_turns() -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    encoder = _encoder(template=strict)
    text = encoder.tokenizer.decode(encoder(build_messages("open", ["door", "key"], ["get"])))
    assert text.split() == ["<user>", "open", "door", "<assistant>", "get", "<user>", "key", "<assistant>"]


@pytest.mark.parametrize("limit", range(24, 90, 3))
def test_forgets_oldest_first_and_keeps_goal_and_newest(limit: int) -> None:
    encoder, messages = _encoder(limit + 8, 8), _conversation(6)
    prompt = encoder.prompt(messages)
    words = encoder.tokenizer.decode(prompt.ids).split()
    assert len(prompt.ids) <= limit
    assert prompt.elided == (len(_full(encoder, messages)) > limit)
    assert "open door w1" in " ".join(words)
    newest = messages[-1].content
    assert " ".join(words[:-1]).endswith(newest) or (ELIDED in words[-10:] and newest.split()[0] in words)
    kept = [m.content for m in messages if m.role == "tool" and m.content in " ".join(words)]
    observations = [m.content for m in messages if m.role == "tool"]
    assert kept == observations[len(observations) - len(kept) :]


def test_a_goal_that_cannot_fit_is_refused() -> None:
    with pytest.raises(InputError, match="goal is too long"):
        _encoder(24, 8).prompt(build_messages(" ".join(["w1"] * 30), ["key"], []))


def test_a_tokenizer_without_template_is_refused() -> None:
    bare = tiny_models.tokenizer()
    bare.chat_template = None
    with pytest.raises(UsageError, match="chat template"):
        Encoder(bare, max_seq_len=64, reserve=8)
    with pytest.raises(UsageError, match="max_seq_len"):
        _encoder(8, 8)
