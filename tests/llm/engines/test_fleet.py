"""The servers of a stage: one for each GPU, or an external one after a check of the model it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.engines.fleet import engine_facts, fleet_of, visible_gpus
from r2v.llm.engines.release import ENGINE_KEY_ENV
from r2v.llm.engines.servers import ExternalServer, OwnServer
from r2v.log import logger
from tests.llm.engines.stub_server import stub_engine
from tests.llm.engines.test_servers import HTTP_MODEL, MODEL


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """Start an external server and return its URL; its options are the test's parameter."""
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setenv(name, value)
    server = OwnServer(stub_engine(tmp_path / "engine") / "bin" / "python", HTTP_MODEL)
    asyncio.run(server.ready())
    monkeypatch.setenv(ENGINE_KEY_ENV, server.key)
    yield server.url
    server.stop()


def test_one_server_for_each_gpu_shared_by_all_policies(tmp_path: Path) -> None:
    home = stub_engine(tmp_path / "engine")
    servers = fleet_of("vllm", MODEL, home=home, gpus=["2", "5"])
    assert [server.gpu for server in servers if isinstance(server, OwnServer)] == ["2", "5"]
    assert fleet_of("vllm", MODEL, home=home, gpus=["2", "5"]) is servers
    (other,) = fleet_of("vllm", replace(MODEL, path="/other"), home=home, gpus=[])
    assert other not in servers
    for server in (*servers, other):
        assert isinstance(server, OwnServer) and server.pid is not None  # it loads already
        server.stop()


def test_gpus_have_the_names_that_slurm_gave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab")
    assert visible_gpus(2) == ["3", "GPU-ab"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(2) == ["0", "1"]


def test_a_server_of_somebody_else_is_asked_what_it_is(running: str, tmp_path: Path) -> None:
    (server,) = fleet_of(f"{running}/v1", MODEL, home=tmp_path, gpus=[])
    assert isinstance(server, ExternalServer) and server.url == running
    facts = engine_facts(running, tmp_path)
    assert facts == {"name": "external", "version": "0.32.0", "models": ["/models/llama"]}


@pytest.mark.parametrize("running", [{"VLLM_STUB_ROOM": "100"}], indirect=True)
def test_a_server_with_less_room_is_refused(running: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes 100 tokens, policy.max_seq_len is 256"):
        fleet_of(running, MODEL, home=tmp_path, gpus=[])


@pytest.mark.parametrize("running", [{"VLLM_STUB_NAME": "llama"}], indirect=True)
def test_a_server_of_another_make_is_refused(running: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="serves llama, not base"):
        fleet_of(running, MODEL, home=tmp_path, gpus=[])


@pytest.mark.parametrize("running", [{"VLLM_STUB_VERSION": "0.40.1"}], indirect=True)
def test_another_version_is_said(
    running: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)  # an earlier command has turned it off
    with caplog.at_level("WARNING", logger="r2v"):
        fleet_of(running, MODEL, home=tmp_path, gpus=[])
    assert "vllm=0.40.1 tested=" in caplog.text


def test_no_server_and_no_key_are_one_line(running: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_KEY_ENV)
    with pytest.raises(EnvironmentFault, match=f"answers 401; set {ENGINE_KEY_ENV}"):
        fleet_of(running, MODEL, home=tmp_path, gpus=[])
    with pytest.raises(EnvironmentFault, match="no server answers there"):
        fleet_of("http://127.0.0.1:9", MODEL, home=tmp_path, gpus=[])
