"""The wire: a judge's reading of the other side's lines, whatever they contain."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from r2v.sandbox.wire import Broken, Peer, RemoteObject, Unsendable


def judge(*replies: Any) -> Peer:
    """Return a judge's end that reads these replies."""
    lines = b"".join(reply if isinstance(reply, bytes) else json.dumps(reply).encode() + b"\n" for reply in replies)
    peer = Peer(BytesIO(lines), BytesIO(), lambda peer, request: {})
    peer.names_builtins = True
    return peer


@pytest.mark.parametrize("kind", ["builtin", "pickle", "object", "__class__", None, 4, [], "eval"])
@pytest.mark.parametrize("content", ["exec", "open", 0, None, ["os", "_exit"]])
def test_a_kind_that_is_no_data_is_refused(kind: Any, content: Any) -> None:
    peer = judge({"value": {"$": kind, "v": content}})
    with pytest.raises(Broken):
        peer.ask("name", name="f")
    assert peer.broken


@pytest.mark.parametrize(
    "value",
    [
        {"$": "int", "v": "4; import os"},
        {"$": "int", "v": 4},
        {"$": "yours", "v": 0},
        {"$": "mine", "v": "x"},
        {"$": "dict", "v": [[{"$": "dict", "v": []}, 1]]},
        {"$": "set", "v": [[1]]},
        {"$": "bytes", "v": "zz"},
        {"$": "range", "v": [1, 2, 0]},
        {"$": "date", "v": "tomorrow"},
        {"$": "Fraction", "v": [1, 0]},
        {"$": "complex", "v": {"real": 1}},
        {"no": "kind"},
    ],
)
def test_content_that_does_not_fit_its_kind_is_refused(value: Any) -> None:
    with pytest.raises(Broken):
        judge({"value": value}).ask("name", name="f")


@pytest.mark.parametrize(
    "line", [b"", b"4\n", b"{\n", b'{"value":1}', b"\xff\n", b"[" * 100_000 + b"\n", b"x" * (5 << 20)]
)
def test_a_line_that_is_no_message_ends_the_conversation(line: bytes) -> None:
    peer = judge(line)
    with pytest.raises(Broken):
        peer.ask("name", name="f")
    assert peer.broken


def test_an_object_of_the_other_side_s_equals_itself_alone_and_takes_part_in_nothing() -> None:
    peer = judge({"value": {"$": "mine", "v": 0}}, {"value": {"$": "mine", "v": 1}})
    first, second = peer.ask("name", name="f"), peer.ask("name", name="g")
    assert isinstance(first, RemoteObject) and first == first and first != second
    assert not any(first == value for value in (0, 1, True, None, "f", [], first.__class__))
    for operation in (
        lambda: first + 1,
        lambda: 1 - first,
        lambda: first < 1,
        lambda: abs(first),
        lambda: float(first),
    ):
        with pytest.raises(TypeError):
            operation()


def test_a_length_a_truth_or_a_text_of_another_type_is_refused() -> None:
    for words, use in (({"value": "4"}, len), ({"value": 1}, bool), ({"value": 4}, str), ({"value": [4]}, repr)):
        peer = judge({"value": {"$": "mine", "v": 0}}, words)
        remote = peer.ask("name", name="f")
        with pytest.raises(TypeError):
            use(remote)


def test_every_kind_of_data_comes_back_as_it_was() -> None:
    values = [None, True, 2**70, -(2**70), 0.1, float("inf"), "é\ud800", (1, [2, {3}]), {(1, 2): b"\0"}, range(3), 1j]
    peer = judge()
    assert peer.decode(json.loads(json.dumps(peer.encode(values)))) == values


@pytest.mark.parametrize(
    ("raised", "kind"),
    [("ValueError", ValueError), ("SystemExit", RuntimeError), ("open", RuntimeError), ("Own", RuntimeError)],
)
def test_an_exception_is_a_built_in_one_or_a_runtime_error(raised: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        judge({"raised": [raised, "why"]}).ask("name", name="f")
    assert type(caught.value) is kind and "why" in str(caught.value)


def test_what_is_no_data_is_not_sent() -> None:
    for value in (object(), type("Own", (), {})()):
        with pytest.raises(Unsendable):
            judge().encode(value)
    assert judge().encode(len) == {"$": "builtin", "v": "len"}
