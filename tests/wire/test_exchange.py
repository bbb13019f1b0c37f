"""Answers of real servers, as reported in public: each shape takes another branch of the readers.

A shape is a line of tests/wire/shapes/*.jsonl with the thread or page that shows it. `reads` is the right reading for
a user; a field that it leaves out has the value of `_NOTHING`. Texts are shortened, ids and keys are made up.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from r2v.wire import anthropic, chat, responses
from r2v.wire.actions import read_actions
from r2v.wire.chat import NotThisFormat
from r2v.wire.errors import read_error
from r2v.wire.exchange import WireReply
from r2v.wire.sse import read_events

Shape = dict[str, Any]

_FOLDER = Path(__file__).parent / "shapes"
_SHAPES: dict[str, list[Shape]] = {
    file.stem: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for file in sorted(_FOLDER.glob("*.jsonl"))
}
_FORMATS = {"chat": chat, "responses": responses, "anthropic": anthropic}
_NOTHING: Shape = {"lines": [], "text": "", "thought": "", "finish": "stop", "usage": None, "error": None}
_CUTS = (1, 7, 4096)
"""Sizes of the pieces in which a stream arrives, in bytes: within characters, within lines, in one."""


def _of(subject: str) -> pytest.MarkDecorator:
    """Shapes of a subject (replies, errors, streams) from every file whose name ends with it, as parameters."""
    shapes = [shape for stem, lines in _SHAPES.items() if stem.endswith(subject) for shape in lines]
    return pytest.mark.parametrize("shape", [pytest.param(shape, id=shape["name"]) for shape in shapes])


def _reading(reply: WireReply, tools: list[str]) -> Shape:
    actions = read_actions(reply.message, tools)
    usage = reply.usage
    return {
        "lines": list(actions.lines),
        "text": "" if actions.lines else actions.text,
        "thought": actions.thought,
        "finish": reply.finish,
        "usage": usage and [usage.input, usage.output, usage.cached],
        "error": reply.error and reply.error.kind,
    }


@_of("replies")
def test_a_reply_reads_as_its_user_means_it(shape: Shape) -> None:
    read_reply = _FORMATS[shape["wire"]].read_reply
    if shape["reads"].get("unreadable"):
        with pytest.raises(NotThisFormat):
            read_reply(shape["body"])
        return
    assert _reading(read_reply(shape["body"]), shape["tools"]) == _NOTHING | shape["reads"]


@_of("errors")
def test_an_error_is_told_by_its_structure(shape: Shape) -> None:
    error = read_error(shape["status"], shape["body"])
    assert {"kind": error.kind, "retry_after": error.retry_after} == {"retry_after": None} | shape["reads"]
    assert error.line.startswith(str(shape["status"]))


@_of("streams")
def test_a_stream_adds_up_however_it_is_cut(shape: Shape) -> None:
    data, read_stream = shape["stream"].encode(), _FORMATS[shape["wire"]].read_stream
    for size in _CUTS:
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert _reading(read_stream(read_events(pieces)), shape["tools"]) == _NOTHING | shape["reads"]


def test_every_shape_has_a_name_of_its_own_and_cites_its_thread() -> None:
    shapes = [shape for lines in _SHAPES.values() for shape in lines]
    assert len(shapes) >= 120
    assert {name: count for name, count in Counter(shape["name"] for shape in shapes).items() if count > 1} == {}
    uncited = [shape["name"] for shape in shapes if "#" not in shape["thread"] and "https://" not in shape["thread"]]
    assert uncited == []
