"""Surface: paths, methods, keys, lists and hostile requests. None of them reaches the provider or the books."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import closing

import anthropic
import httpx2
import openai
import pytest
import zstandard

from r2v.serve.transport.endpoints import COUNT_PATH, PATHS
from r2v.wire.stream_facts import WireName
from tests.serve.accounts.test_books import booked
from tests.serve.conftest import KEY
from tests.serve.stub import Seen, Served, Step, Stub, reply, served, stream, stub
from tests.serve.wires import WIRES, body, events, whole


def answer(seen: Seen) -> list[Step]:
    if "count_tokens" in seen.target:
        return reply({"input_tokens": 17})
    wire: WireName = next(name for name, path in PATHS.items() if seen.target.startswith(path))
    return stream(events(wire)) if b'"stream": true' in seen.body else reply(whole(wire))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stub, Served]]:
    with pytest.MonkeyPatch.context() as patch, stub(answer) as provider:
        patch.setenv("STUB_API_KEY", KEY)
        with served(tmp_path_factory.mktemp("served"), provider.url) as server:
            yield provider, server


def raw(server: Served, method: str, target: str, content: bytes, *headers: str) -> bytes:
    """Return the first bytes of the answer to a request that no client would write."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    lines = [f"{method} {target} HTTP/1.1", "host: x", f"authorization: Bearer {server.key}", *headers]
    lines += [f"content-length: {len(content)}"] if content else []
    with closing(socket.create_connection((host, int(port)), timeout=10)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)
        head, _, content = connection.recv(1 << 16).partition(b"\r\n\r\n")
        return head + (content or connection.recv(1 << 16))


@pytest.mark.parametrize("target", [
    "/v1/../v1/messages", "/v1/%2e%2e/v1/messages", "/v1/%252e%252e/messages", "//v1/messages", "/v1//messages",
    "/v1\\messages", "/v1/v1/messages", "/v1/messages%00", "/v1/messages/", "http://elsewhere/v1/messages",
    "/v1/messages/batches", "/v1/responses/compact", "/v1/files", "/", "/v1/chat/completions/x",
])  # fmt: skip
def test_no_other_path_reaches_the_provider(target: str, pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = len(provider.seen)
    content = json.dumps(body("messages")).encode()
    status = raw(server, "POST", target, content).split(b" ")[1]
    assert status in (b"404", b"400", b"405") and len(provider.seen) == before


def test_probes_need_no_key_and_cost_nothing(pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = len(provider.seen)
    for path in ("/", "/api/hello", *PATHS.values(), "/v1/models"):
        assert httpx2.head(server.url + path).status_code == 200
        for headers in ({}, {"origin": "https://elsewhere", "access-control-request-method": "POST"}):
            refused = httpx2.options(server.url + path, headers=headers)
            assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
    assert httpx2.get(server.url + "/healthz").status_code == httpx2.get(server.url + "/readyz").status_code == 200
    assert len(provider.seen) == before


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": "Basic abc"}]
)
def test_a_wrong_key_is_refused_everywhere(headers: dict[str, str], pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = len(provider.seen)
    for path in (*PATHS.values(), COUNT_PATH):
        refused = httpx2.post(server.url + path, json=body("chat"), headers=headers)
        assert refused.status_code == 401 and "key" in refused.json()["error"]["message"]
    for path in ("/v1/models", "/metrics", "/v1/sessions/x"):
        assert httpx2.get(server.url + path, headers=headers).status_code == 401
    assert len(provider.seen) == before


def test_websockets_are_answered_with_426(pair: tuple[Stub, Served]) -> None:
    _, server = pair
    upgrade = (
        "connection: Upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAA=",
    )
    assert raw(server, "GET", "/v1/responses", b"", *upgrade).startswith(b"HTTP/1.1 426 ")


def test_one_list_of_models_suits_both_clients_and_each_can_be_asked(pair: tuple[Stub, Served]) -> None:
    _, server = pair
    ours = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)
    theirs = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)
    names = [model.id for model in ours.models.list()]
    assert (
        names == [model.id for model in theirs.models.list()] == [model.id for model in theirs.models.list(limit=1000)]
    )
    assert {"llm", "big-1"} <= set(names)
    for name in names:
        assert ours.models.retrieve(name).id == theirs.models.retrieve(name).id == name
        message = [{"role": "user", "content": "x"}]
        assert ours.chat.completions.create(model=name, messages=message).choices[0].message.content == "Hello."  # type: ignore[arg-type]
        assert ours.responses.create(model=name, input="x").output_text == "Hello."
        assert theirs.messages.create(model=name, max_tokens=9, messages=message).content[0].text == "Hello."  # type: ignore[arg-type, union-attr]


def test_counts_pass_and_are_not_booked(pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = booked(server)
    theirs = anthropic.Anthropic(base_url=server.url, api_key=server.key)
    assert theirs.messages.count_tokens(model="llm", messages=[{"role": "user", "content": "x"}]).input_tokens == 17
    assert provider.seen[-1].json["model"] == "big-1" and booked(server) == before


def test_a_session_tells_its_turns_and_dollars(pair: tuple[Stub, Served]) -> None:
    _, server = pair
    headers = server.auth | {"x-r2v-session": "mine"}
    for _ in range(2):
        httpx2.post(server.url + PATHS["chat"], json=body("chat"), headers=headers)
    booked(server)  # waits until both are settled
    told = httpx2.get(server.url + "/v1/sessions/mine", headers=server.auth).json()
    assert told["turns"] == 2 and told["usd"] == pytest.approx(2 * 180e-6) and told["recognised_by"] == "x-r2v-session"
    assert httpx2.get(server.url + "/v1/sessions/other", headers=server.auth).status_code == 404


BAD = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b'{"model":"\xff"}',
    "deep": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "cut": b'{"model":"llm","messages":[',
    "twice": b'{"model":"llm"}{"model":"llm"}',
    "empty": b"",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("wire", WIRES)
def test_a_bad_body_is_one_line_and_400(wire: WireName, name: str, pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = len(provider.seen)
    refused = httpx2.post(server.url + PATHS[wire], content=BAD[name], headers=server.auth)
    assert refused.status_code == 400 and "body" in refused.json()["error"]["message"]
    assert "\n" not in refused.json()["error"]["message"] and len(provider.seen) == before


def test_sizes_up_to_the_limit_pass_and_larger_ones_are_refused_early(pair: tuple[Stub, Served]) -> None:
    provider, server = pair

    def pieces(size: int) -> Iterator[bytes]:
        content = json.dumps(body("chat", pad="x" * size)).encode()
        yield from (content[start : start + 65536] for start in range(0, len(content), 65536))

    for size in (990_000, 2_100_000, 32_900_000):
        for chunked in (True, False):
            content = pieces(size) if chunked else b"".join(pieces(size))
            made = httpx2.post(server.url + PATHS["chat"], content=content, headers=server.auth, timeout=30)
            assert made.status_code == 200 and len(provider.seen[-1].body) > size
    before = len(provider.seen)
    refused = raw(server, "POST", "/v1/messages", b"", "content-length: 40000000")
    assert refused.startswith(b"HTTP/1.1 413 ") and b"more than 33 MB" in refused and len(provider.seen) == before


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "identity"])
def test_compressed_bodies_are_read_and_sent_on_as_they_came(encoding: str, pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    content = json.dumps(body("responses", model="big-1")).encode()
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    packed = {"zstd": zstandard.ZstdCompressor().compress(content), "identity": content}.get(
        encoding
    ) or packer.compress(content) + packer.flush()
    headers = server.auth | {"content-encoding": encoding}
    assert httpx2.post(server.url + PATHS["responses"], content=packed, headers=headers).status_code == 200
    assert provider.seen[-1].body == packed and provider.seen[-1].all("content-encoding") == [encoding]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "gzip, gzip"])
def test_bombs_and_other_encodings_are_refused(encoding: str, pair: tuple[Stub, Served]) -> None:
    provider, server = pair
    before = len(provider.seen)
    zeros = b'{"model":"' + bytes(100_000_000) + b'"}'
    packer = zlib.compressobj(wbits=31)
    packed = (
        zstandard.ZstdCompressor().compress(zeros) if encoding == "zstd" else packer.compress(zeros) + packer.flush()
    )
    refused = httpx2.post(
        server.url + PATHS["chat"], content=packed, headers=server.auth | {"content-encoding": encoding}, timeout=30
    )
    assert refused.status_code == 400 and len(provider.seen) == before
    damaged = httpx2.post(
        server.url + PATHS["chat"], content=packed[5:], headers=server.auth | {"content-encoding": encoding}
    )
    assert damaged.status_code == 400


def test_floods_of_headers_are_ended(pair: tuple[Stub, Served]) -> None:
    _, server = pair
    host, _, port = server.url.removeprefix("http://").partition(":")
    for flood in (b"x: " + b"a" * 60_000, b"".join(b"x-%d: y\r\n" % number for number in range(4000))):
        with closing(socket.create_connection((host, int(port)), timeout=10)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            ended = False
            for _ in range(20):
                try:
                    connection.sendall(flood)
                except OSError:
                    ended = True
                    break
                time.sleep(0.01)
            if not ended:
                try:
                    ended = connection.recv(100).startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")) or True
                except OSError:
                    ended = True
            assert ended


def test_no_key_is_in_any_output(pair: tuple[Stub, Served], caplog: pytest.LogCaptureFixture) -> None:
    provider, server = pair
    caplog.set_level(logging.DEBUG)
    shown = []
    for headers in (server.auth, {"x-api-key": server.key}, {"authorization": f"Bearer {server.key}x"}):
        for content in (json.dumps(body("messages")).encode(), b"{"):
            made = httpx2.post(f"{server.url}/v1/messages?key={server.key}", content=content, headers=headers)
            shown += [made.text, str(made.headers)]
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]  # not the client's
    shown += [httpx2.get(server.url + "/metrics", headers=server.auth).text, *ours]
    shown += [
        path.read_bytes().decode("latin-1")
        for path in server.folder.rglob("*")
        if path.is_file() and path.name != "keys"
    ]
    for secret in (server.key, KEY):
        for form in (secret, secret[:16], base64.b64encode(secret.encode()).decode()[:16]):
            assert not [text for text in shown if form in text]


def test_metrics_and_log_hold_no_prompt(pair: tuple[Stub, Served]) -> None:
    _, server = pair
    marker = "a very secret sentence"
    httpx2.post(
        server.url + PATHS["chat"],
        json=body("chat", messages=[{"role": "user", "content": marker}]),
        headers=server.auth,
    )
    metrics = httpx2.get(server.url + "/metrics", headers=server.auth).text
    assert re.search(r'r2v_requests_total\{source="llm",status="200",wire="chat"\} [1-9]', metrics)
    assert (
        marker
        not in metrics + (server.folder / "traffic.jsonl").read_text() + (server.folder / "journal.jsonl").read_text()
    )
