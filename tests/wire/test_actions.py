"""Actions whose own texts look like marks, and texts made to break a reader."""

from __future__ import annotations

import pytest

from r2v.wire.actions import read_actions
from r2v.wire.message import Message


@pytest.mark.parametrize(
    "action",
    [
        '{"tool": "reply", "text": "put it in <thinking> tags"}',
        '{"tool": "reply", "text": "end </think> here"}',
        '{"tool": "reply", "text": "<|im_end|>"}',
    ],
)
def test_an_action_keeps_marks_that_stand_in_its_texts(action: str) -> None:
    read = read_actions(Message(role="assistant", content=action), {"reply"})
    assert (read.lines, read.thought) == ((action,), "")


@pytest.mark.parametrize(
    "text",
    [
        "reply" + ".b" * 3000 + "(1)",
        "reply(x=" + "-" * 3000 + "1)",
        "reply" + "(" * 3000,
        "reply [" * 3_000,
        "reply " + "[" * 100_000,
        "a <tool_call>" * 3000,
    ],
    ids=["attributes", "minuses", "parentheses", "words", "brackets", "tags"],
)
def test_a_hostile_reply_is_prose_and_no_traceback(text: str) -> None:
    assert read_actions(Message(role="assistant", content=text), {"reply"}).lines == ()
