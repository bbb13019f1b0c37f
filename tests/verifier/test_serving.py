"""A verifier behind a server: the state that the server computes, and the head that stays local."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.client import Adapter
from r2v.llm.engines.servers import OwnServer
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.verifier.serving import ScoreHead, read_head, served_verifier
from r2v.wire.message import Message
from tests.llm.engines.stub_server import hidden_state, stub_engine
from tests.llm.engines.test_servers import MODEL

HEAD = ScoreHead(weight=np.array([1.0, -2.0, 0.5]), bias=0.25, temperature=2.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnServer]:
    one = OwnServer(stub_engine(tmp_path / "engine") / "bin" / "python", MODEL)
    yield one
    one.stop()


def fold(folder: Path, name: str) -> Adapter:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "adapter_config.json").write_text("{}")
    return Adapter(name=name, folder=folder / name)


def encode(messages: Sequence[Message], action: str) -> list[int]:
    return [len(message.content) for message in messages] + [len(action)]


def question(number: int) -> ScoreRequest:
    return ScoreRequest(messages=(Message(role="user", content="x" * (number % 9)),), action="y" * number)


def scores(
    server: OwnServer, adapter: Adapter, questions: Sequence[ScoreRequest], head: ScoreHead = HEAD
) -> list[float]:
    waves = Waves(max_conversations=64)
    ask = waves.batched(served_verifier([server], adapter, head=head, encode=encode))
    replies = waves.run(partial(ask, one) for one in questions)
    assert [reply.tokens_in for reply in replies] == [len(encode(one.messages, one.action)) for one in questions]
    return [reply.score for reply in replies]


def expected(name: str, number: int) -> float:
    state = hidden_state(name, encode(*_parts(number)))
    return round(1 / (1 + math.exp(-(state[0] - 2 * state[1] + 0.5 * state[2] + 0.25) / 2)), 6)


def _parts(number: int) -> tuple[Sequence[Message], str]:
    return question(number).messages, question(number).action


def test_folds_are_adapters_of_one_server_and_one_that_dies_loses_no_score(
    server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_DIE_AT", "30")
    monkeypatch.setenv("VLLM_STUB_DIED", str(tmp_path / "died"))
    for name in ("fold0", "fold1"):
        found = scores(server, fold(tmp_path, name), [question(number) for number in range(60)])
        assert found == [expected(name, number) for number in range(60)]
    assert (tmp_path / "died").exists() and server.lives == 2


def test_the_score_is_the_sigmoid_of_the_tempered_logit() -> None:
    for logit in (-800.0, -1.5, 0.0, 2.0, 800.0):
        head = ScoreHead(weight=np.array([1.0]), bias=0.0, temperature=2.0)
        exact = 0.0 if logit < -700 else 1 / (1 + math.exp(-logit / 2))
        assert head.score(np.array([logit])) == round(exact, 6)


def test_what_a_server_refuses_or_garbles_is_told(
    server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_ROOM", "1")
    with pytest.raises(Unanswered, match="maximum context length"):
        scores(server, fold(tmp_path, "fold0"), [question(3)])
    server.stop()
    monkeypatch.setenv("VLLM_STUB_ROOM", "256")
    monkeypatch.setenv("VLLM_STUB_STATE", "nan")
    with pytest.raises(EnvironmentFault, match="not a hidden state of vLLM"):
        scores(server, fold(tmp_path, "fold0"), [question(3)])
    server.stop()
    monkeypatch.delenv("VLLM_STUB_STATE")
    with pytest.raises(EnvironmentFault, match="3 values for 1, or not finite"):
        scores(server, fold(tmp_path, "fold0"), [question(3)], replace(HEAD, weight=np.ones(1)))


def test_a_folder_without_a_head_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    with pytest.raises(InputError, match="not a verifier of adapters"):
        read_head(tmp_path)
    (tmp_path / "verifier.json").write_text('{"temperature": 1.5}')
    save_file({"head.weight": np.ones((1, 4), "f4"), "head.bias": np.zeros(1, "f4")}, tmp_path / "verifier.safetensors")
    assert read_head(tmp_path).weight.shape == (4,) and read_head(tmp_path).temperature == 1.5
    (tmp_path / "verifier.json").write_text('{"temperature": 0}')
    with pytest.raises(InputError, match="its temperature"):
        read_head(tmp_path)
