"""Requests through a server: none is lost when it dies, and a refusal by the server is a refused request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Price
from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.client import Adapter, ServedModel
from r2v.llm.engines.served import served_chat
from r2v.llm.engines.servers import ExternalServer, OwnServer
from r2v.llm.local.token_replies import TokenReplies
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import Reply, Request
from r2v.llm.waves import Waves
from r2v.wire.message import Message
from tests.llm.engines.stub_server import END, stub_engine
from tests.llm.engines.test_servers import HTTP_MODEL, MODEL

PRICE = Price(input=1.0, output=2.0, seconds_per_call=0, seconds_per_token=0)


class Words:
    """A tokenizer that writes each token as its number."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, tokens))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnServer]:
    own = OwnServer(stub_engine(tmp_path / "engine") / "bin" / "python", MODEL)
    yield own
    own.stop()


@pytest.fixture
def over_http(tmp_path: Path) -> Iterator[OwnServer]:
    own = OwnServer(stub_engine(tmp_path / "http") / "bin" / "python", HTTP_MODEL)
    asyncio.run(own.ready())
    yield own
    own.stop()


def served(*servers: Any, adapter: Adapter | None = None) -> ServedModel[Request, Reply]:
    return served_chat(
        servers,
        adapter,
        encode=lambda messages: [len(message.content) % 40 for message in messages] * (1 + len(messages[0].content)),
        end_ids=frozenset({END}),
        replies=TokenReplies(Words(), "slm", PRICE),
    )


def request(number: int, **changes: Any) -> Request:
    settings = {"temperature": 0.7, "max_tokens": 4, "num_samples": 1 + number % 2, **changes}
    return Request(messages=(Message(role="user", content="x" * (number % 9)),), key=(1, f"t{number}", 0), **settings)


def answers(model: ServedModel[Request, Reply], requests: list[Request]) -> list[Reply]:
    waves = Waves(max_conversations=64)
    chat = waves.model(model)
    return waves.run(partial(chat.reply, question) for question in requests)


def adapter(folder: Path, name: str) -> Adapter:
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text("{}")
    return Adapter(name=name, folder=folder / name)


def test_a_server_killed_in_the_middle_loses_no_conversation(
    server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(number) for number in range(120)]
    monkeypatch.setenv("VLLM_STUB_DIE_AT", "50")
    monkeypatch.setenv("VLLM_STUB_DIED", str(tmp_path / "died"))
    disturbed = answers(served(server), requests)
    assert (tmp_path / "died").exists() and server.lives == 2
    assert disturbed == answers(served(server), requests)
    assert server.lives == 2


def test_adapters_are_loaded_by_name_and_again_after_a_restart(
    server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_DIE_AT", "30")
    monkeypatch.setenv("VLLM_STUB_DIED", str(tmp_path / "died"))
    models = [None, adapter(tmp_path, "one"), adapter(tmp_path, "two")]
    waves = Waves()
    chats = [waves.model(served(server, adapter=model)) for model in models]
    requests = [request(number) for number in range(20)]
    replies = waves.run(partial(chat.reply, question) for question in requests for chat in chats)
    assert server.lives == 2
    texts = {tuple(reply.text for reply in replies[offset::3]) for offset in range(3)}
    assert len(texts) == 3
    assert [reply.text for reply in answers(served(server, adapter=models[2]), requests)] == [
        r.text for r in replies[2::3]
    ]


def test_adapters_that_the_server_cannot_load_are_named(server: OwnServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load this adapter .500: no adapter there"):
        answers(served(server, adapter=Adapter(name="none", folder=tmp_path)), [request(1)])


def test_samples_have_keys_of_their_own_and_greedy_ones_are_drawn_once(server: OwnServer) -> None:
    sampled, greedy = answers(served(server), [request(1, num_samples=3), request(1, num_samples=3, temperature=0.0)])
    assert len({sample.tokens for sample in sampled.samples}) == 3
    assert len(greedy.samples) == 3 and len({sample.tokens for sample in greedy.samples}) == 1
    assert sampled.samples[0].logprobs and sampled.samples[0].entropies
    assert sampled.usage.tokens_in == 2


def test_a_reply_is_the_same_over_a_socket_and_over_http_and_without_figures_that_nobody_reads(
    server: OwnServer, over_http: OwnServer
) -> None:
    whole, bare = answers(served(server), [request(1), request(1, logprobs=False)])
    assert whole.samples[0].logprobs and not bare.samples[0].logprobs and not bare.samples[0].entropies
    assert [sample.tokens for sample in whole.samples] == [sample.tokens for sample in bare.samples]
    (proved,) = answers(served(ExternalServer(over_http.url, over_http.key)), [request(1, logprobs=False)])
    assert proved == whole


def test_a_prompt_that_the_server_refuses_is_a_refused_request(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_ROOM", "4")
    with pytest.raises(Unanswered, match="maximum context length") as refused:
        answers(served(server), [request(8)])
    assert refused.value.final


def test_a_reply_cut_short_is_a_refused_request(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_STUB_SHORT", "1")
    with pytest.raises(Unanswered, match="cut at 1 of 4 tokens") as refused:
        answers(served(server), [request(1)])
    assert refused.value.final


def test_an_engine_without_the_keyed_processor_is_refused(server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_STUB_UNKEYED", "1")
    with pytest.raises(EnvironmentFault, match="no exact log-probabilities and entropies"):
        answers(served(server), [request(1)])


def test_a_wrong_key_is_one_line(over_http: OwnServer) -> None:
    with pytest.raises(EnvironmentFault, match="401: Unauthorized"):
        answers(served(ExternalServer(over_http.url, "wrong")), [request(1)])


def test_conversations_are_spread_over_the_servers_and_answers_do_not_depend_on_it(
    server: OwnServer, tmp_path: Path
) -> None:
    second = OwnServer(stub_engine(tmp_path / "second") / "bin" / "python", MODEL)
    try:
        requests = [request(number) for number in range(20)]
        assert answers(served(server, second), requests) == answers(served(server), requests)
        assert second.lives == 1
    finally:
        second.stop()
