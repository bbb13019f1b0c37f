"""Forwarding: bytes in both directions, changed and unchanged, on all three wires."""

from __future__ import annotations

import json
import random
from pathlib import Path

import anthropic
import httpx2
import openai
import pytest

from r2v.serve.accounts.traffic import read_traffic
from r2v.serve.forwarding import PassingReply
from r2v.serve.transport.endpoints import PATHS
from r2v.wire.exchange import TokenUsage
from r2v.wire.stream_facts import WireName
from tests.serve.conftest import KEY
from tests.serve.stub import Seen, Step, reply, served, stream, stub
from tests.serve.wires import USAGE, USD, WIRES, body, events, whole, wire_reply


def answered(wire: WireName) -> list[Step]:
    return reply(whole(wire))


def post(url: str, path: str, content: object, headers: dict[str, str] | list[tuple[str, str]]) -> httpx2.Response:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    with httpx2.Client(timeout=30) as client:
        return client.post(url + path, content=raw, headers=headers)


@pytest.mark.parametrize("wire", WIRES)
def test_bytes_and_headers_reach_the_provider_as_they_came(wire: WireName, tmp_path: Path) -> None:
    odd = json.dumps(body(wire, model="big-1"))[:-1] + (
        ' ,  "numbers":[1.0, 1e3,12345678901234567890,-0.0] , "text":"\\u00e9\\/ \u00fc", "twice": 1, "twice": 2 }\n'
    )
    beta = [("anthropic-beta", "one-2026,invented-1"), ("anthropic-beta", "two"), ("OpenAI-Beta", "x=1")]
    with stub(lambda seen: answered(wire)) as provider, served(tmp_path, provider.url) as server:
        headers = [
            *server.auth.items(),
            *beta,
            ("anthropic-version", "2026-10-21"),
            ("x-own", "caf\u00e9".encode()),
        ]
        made = post(server.url, f"{PATHS[wire]}?beta=true&x=1", odd.encode(), headers)
        again = post(server.url, PATHS[wire], odd.encode(), server.auth)
    assert made.status_code == again.status_code == 200
    assert made.content == whole(wire)
    seen, plain = provider.seen
    assert seen.body == plain.body == odd.encode()
    assert seen.target == f"{PATHS[wire]}?beta=true&x=1"
    assert seen.all("anthropic-beta") == ["one-2026,invented-1", "two"]
    assert seen.all("openai-beta") == ["x=1"]
    assert not plain.all("anthropic-beta") and not plain.all("anthropic-version")


@pytest.mark.parametrize("wire", WIRES)
def test_only_the_model_is_replaced_where_a_name_of_ours_is_given(wire: WireName, tmp_path: Path) -> None:
    with stub(lambda seen: answered(wire)) as provider, served(tmp_path, provider.url) as server:
        sent = json.dumps(body(wire, x=1.50), indent=3).encode()
        post(server.url, PATHS[wire], sent, server.auth)
    assert provider.seen[0].body == sent.replace(b'"llm"', b'"big-1"')
    assert next(iter(read_traffic(server.folder)))["changed"] == ["model"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_arrives_unchanged_whatever_its_pieces(wire: WireName, tmp_path: Path) -> None:
    text = "Zürich — 東京 🎉 " * 3
    content = b"".join(events(wire, wire_reply(text)))
    draw = random.Random(7)
    cuts = sorted(draw.sample(range(len(content)), 60))
    pieces = [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    bytewise = [content[at : at + 1] for at in range(len(content))]
    asks = body(
        wire, stream=True, model="big-1", **({"stream_options": {"include_usage": True}} if wire == "chat" else {})
    )
    for cut in (pieces, bytewise):
        with stub(lambda seen, cut=cut: stream(cut)) as provider, served(tmp_path, provider.url) as server:
            made = post(server.url, PATHS[wire], asks, server.auth)
        assert made.content == content
        rows = list(read_traffic(server.folder))
        assert rows[-1]["whole"] and rows[-1]["usd"] == pytest.approx(USD) and "\ufffd" not in json.dumps(rows)


def test_usage_that_the_client_did_not_ask_for_is_withheld(tmp_path: Path) -> None:
    content = events("chat")
    with stub(lambda seen: stream(content)) as provider, served(tmp_path, provider.url) as server:
        made = post(server.url, PATHS["chat"], body("chat", stream=True), server.auth)
    assert provider.seen[0].json["stream_options"] == {"include_usage": True}
    assert made.content == b"".join(event for event in content if b'"usage":{' not in event)
    (row,) = read_traffic(server.folder)
    assert row["changed"] == ["model", "stream_options.include_usage"] and row["usd"] == pytest.approx(USD)


@pytest.mark.parametrize("last", ["whole", "no blank line", "no DONE"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_ends_by_the_rule_of_its_format(wire: WireName, last: str, tmp_path: Path) -> None:
    pieces = events(wire)
    if last == "no DONE":
        pieces = [piece for piece in pieces if piece != b"data: [DONE]\n\n"]
    if last == "no blank line":
        pieces[-1] = pieces[-1].rstrip(b"\n")
    asks = body(
        wire, stream=True, model="big-1", **({"stream_options": {"include_usage": True}} if wire == "chat" else {})
    )
    with stub(lambda seen: stream(pieces)) as provider, served(tmp_path, provider.url) as server:
        made = post(server.url, PATHS[wire], asks, server.auth)
    assert made.content == b"".join(pieces)
    (row,) = read_traffic(server.folder)
    assert row["whole"] and row["usd"] == pytest.approx(USD) and len(provider.seen) == 1


@pytest.mark.parametrize("how", ["reset", "early end", "silence"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_breaks_off_says_so_in_its_format(wire: WireName, how: str, tmp_path: Path) -> None:
    whole_events = [event for event in events(wire, wire_reply("word " * 40)) if b"DONE" not in event]
    begun: list[Step] = list(whole_events[:4])
    answer = stream([*begun, 30.0] if how == "silence" else begun, ends=how != "reset")
    with stub(lambda seen: answer) as provider, served(tmp_path, provider.url, "serve.idle_seconds=1") as server:
        made = post(server.url, PATHS[wire], body(wire, stream=True), server.auth)
    assert made.content.startswith(b"".join(begun))
    last = made.content[len(b"".join(begun)) :].decode()
    assert last.startswith(
        {"chat": 'data: {"error"', "responses": "event: response.failed", "messages": "event: error"}[wire]
    )
    assert "[DONE]" not in last and "finish_reason" not in last
    (row,) = read_traffic(server.folder)
    assert not row["whole"] and row["usd"] is None and row["trouble"]


def test_clients_of_both_makers_raise_where_a_stream_breaks_off(tmp_path: Path) -> None:
    def answer(seen: Seen) -> list[Step]:
        wire: WireName = next(name for name, path in PATHS.items() if seen.target.startswith(path))
        return stream(events(wire, wire_reply("word " * 40))[:4])

    with stub(answer) as provider, served(tmp_path, provider.url) as server:
        ours = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
        theirs = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)
        with pytest.raises(openai.APIError):
            for _ in ours.chat.completions.create(
                model="llm", messages=[{"role": "user", "content": "x"}], stream=True
            ):
                pass
        with pytest.raises((openai.APIError, RuntimeError)), ours.responses.stream(model="llm", input="x") as events_:
            events_.get_final_response()
        with (
            pytest.raises(anthropic.APIError),
            theirs.messages.stream(model="llm", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as text,
        ):
            text.get_final_text()


@pytest.mark.parametrize(
    "status,extra",
    [
        (
            429,
            [
                ("retry-after", "287441"),
                ("anthropic-ratelimit-unified-status", "rejected"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("request-id", "req_1"),
            ],
        ),
        (529, [("x-should-retry", "false")]),
        (400, []),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
def test_errors_of_the_provider_pass_unaltered_and_cost_nothing(
    wire: WireName, status: int, extra: list[tuple[str, str]], tmp_path: Path
) -> None:
    error = {
        "type": "error",
        "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "Slow down."},
    }
    with stub(lambda seen: reply(error, status, extra)) as provider, served(tmp_path, provider.url) as server:
        for streams in (False, True):
            made = post(server.url, PATHS[wire], body(wire, stream=streams), server.auth)
            assert made.status_code == status and made.json() == error
            assert [made.headers[name] for name, _ in extra] == [value for _, value in extra]
    assert [row["usd"] for row in read_traffic(server.folder)] == [0.0, 0.0]
    assert len(provider.seen) == 2


@pytest.mark.parametrize("wire", WIRES)
def test_keys_of_clients_stay_and_the_provider_s_is_sent_alone(wire: WireName, tmp_path: Path) -> None:
    with stub(lambda seen: answered(wire)) as provider, served(tmp_path, provider.url) as server:
        headers = [
            ("X-API-Key", server.key),
            ("x-api-key", "again"),
            ("API-KEY", "third"),
            ("cookie", "a=b"),
            ("Authorization", "Bearer wrong"),
        ]
        assert post(server.url, PATHS[wire], body(wire), headers).status_code == 200
    seen = provider.seen[0]
    assert seen.all("authorization") == [f"Bearer {KEY}"]
    assert not (seen.all("x-api-key") or seen.all("api-key") or seen.all("cookie"))
    assert server.key not in str(seen)


def test_an_anthropic_provider_gets_its_key_in_its_own_header(tmp_path: Path) -> None:
    with (
        stub(lambda seen: answered("messages")) as provider,
        served(tmp_path, provider.url, provider="anthropic") as server,
    ):
        post(server.url, PATHS["messages"], body("messages"), server.auth)
    assert provider.seen[0].all("x-api-key") == [KEY] and not provider.seen[0].all("authorization")


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
