"""A reply in transit: the same bytes and facts however it is cut, and bounded memory for an event without end."""

from __future__ import annotations

import random

import pytest

from r2v.serve.transport.replies import PassingReply
from r2v.wire.exchange import TokenUsage
from r2v.wire.stream_facts import WireName
from tests.serve.wires import USAGE, WIRES, events


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("mark", [b"\n", b"\r\n"])
def test_however_its_bytes_are_cut(wire: WireName, mark: bytes) -> None:
    whole = b"".join(events(wire)).replace(b"\n", mark)
    for seed in range(20):
        draw = random.Random(seed)
        cuts = sorted(draw.sample(range(len(whole)), k=draw.choice([0, 1, 20, len(whole) - 1])))
        passing = PassingReply(wire, streams=True, withhold_usage=wire == "chat")
        sent = [passing.add(whole[start:end]) for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        sent.append(passing.end())
        assert passing.facts.usage == USAGE and passing.facts.ended and passing.content == whole
        assert (b"".join(sent) == whole) == (wire != "chat") and b"".join(sent) in (whole, _without_usage(whole, mark))


def _without_usage(whole: bytes, mark: bytes) -> bytes:
    parts = whole.split(mark * 2)
    return (mark * 2).join(part for part in parts if b'"choices":[]' not in part)


def test_an_event_without_end_is_sent_on_unread() -> None:
    passing = PassingReply("chat", streams=True, withhold_usage=True)
    piece = b"data: " + b"x" * (1 << 20)
    sent = sum(len(passing.add(piece)) for _ in range(40))
    held = 40 * len(piece) - sent
    assert 0 <= held <= 17 << 20 and len(passing.content) <= 16 << 20
    tail = b"\n\n" + b"".join(events("chat"))
    sent += len(passing.add(tail)) + len(passing.end())
    assert passing.facts.usage == TokenUsage(input=100, output=20) and sent < 40 * len(piece) + len(tail)
