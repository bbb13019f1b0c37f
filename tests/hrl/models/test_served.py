"""Roles behind a serving engine: their adapters follow the training, their draws keep both log-probabilities."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from r2v.config import CriticConfig, HierarchicalConfig, PolicyConfig
from r2v.errors import EnvironmentFault, UsageError
from r2v.hrl.algorithm.training_batch import batch_logprobs
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.models.served import ServedRoles
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.llm.engines.servers import OwnServer
from r2v.storage.artifact import ATTEMPT
from tests.llm.engines.stub_server import stub_engine
from tests.llm.engines.test_servers import MODEL
from tests.served_models import base_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def roles(base: Path, tmp_path: Path) -> Iterator[Roles]:
    policy = PolicyConfig(model_name=str(base), lora_r=4, device="cpu", dtype="float32")
    server = OwnServer(stub_engine(tmp_path / "engine") / "bin" / "python", MODEL)
    (tmp_path / ATTEMPT).write_text("{}")
    served = ServedRoles([server], tmp_path / "served")
    yield replace(build_roles(policy, HierarchicalConfig(critic=CriticConfig()), 0), served=served)
    served.close()
    assert server.pid is None and not (tmp_path / "served").exists()


def requests(count: int, prompt: int = 5) -> list[GenerationRequest]:
    return [
        GenerationRequest(prompt=tuple(range(3, 3 + prompt + i % 2)), key=("k", i), max_tokens=4) for i in range(count)
    ]


def move(roles: Roles, role: str) -> None:
    with torch.no_grad():
        for tensor in roles.parameters(role):  # type: ignore[arg-type]
            tensor.add_(0.01)


def test_the_engine_draws_and_the_model_here_weighs(roles: Roles) -> None:
    asked = requests(6)
    said = Generator(roles, "actor").generate(asked)
    again = Generator(roles, "actor").generate(asked)
    assert said == again and [one.prompt for one in said] == [one.prompt for one in asked]
    with roles.using("actor") as model:
        weighed = batch_logprobs(model, "cpu", said, 2)
    for one, logprobs in zip(said, weighed, strict=True):
        assert one.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert len(one.engine_logprobs) == len(one.tokens) and one.engine_logprobs != one.logprobs, "the stub's own"


def test_greedy_draws_are_weighed_by_nobody(roles: Roles) -> None:
    asked = [replace(one, temperature=0.0, return_logprobs=False) for one in requests(3)]
    assert {one.logprobs + one.engine_logprobs for one in Generator(roles, "guidance").generate(asked)} == {()}


def test_adapters_are_sent_where_they_have_changed_and_the_former_are_taken_back(roles: Roles, tmp_path: Path) -> None:
    first = roles.published("actor")
    assert roles.published("actor") is first and first.name.startswith("r2v-actor-")
    other = roles.published("guidance")
    assert other.name.startswith("r2v-guidance-") and other.folder.exists()
    before = Generator(roles, "actor").generate(requests(4))
    move(roles, "actor")
    second = roles.published("actor")
    assert second.name != first.name and not first.folder.exists() and second.folder.exists() and other.folder.exists()
    after = Generator(roles, "actor").generate(requests(4))
    assert [one.tokens for one in before] != [one.tokens for one in after], "the stub draws by the adapters' name"
    assert sorted(path.name for path in (tmp_path / "served").iterdir()) == sorted([second.name, other.name])


def test_both_policies_ask_one_server_each_with_its_own_adapters(roles: Roles) -> None:
    asked = requests(8)
    actor, guidance = (Generator(roles, role).generate(asked) for role in ("actor", "guidance"))
    assert [one.tokens for one in actor] != [one.tokens for one in guidance]


def test_what_does_not_fit_is_one_line(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_STUB_ROOM", "4")
    with pytest.raises(UsageError, match="policy.engine: .* policy.max_seq_len"):
        Generator(roles, "actor").generate(requests(1))


def test_a_full_disk_is_one_line_and_the_former_adapters_stay(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = roles.published("actor")
    move(roles, "actor")
    with monkeypatch.context() as patch:
        patch.setattr("r2v.hrl.models.served.export_adapters", full)
        with pytest.raises(EnvironmentFault, match="No space left on device"):
            roles.published("actor")
    assert first.folder.exists() and roles.published("actor").name != first.name
