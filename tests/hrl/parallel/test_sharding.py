"""Language models in parts, one with each of two processes (FSDP2, gloo on a CPU), learn the same as whole ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.training import checkpoint
from r2v.policy.load import load_policy
from r2v.storage.checkpoint import LATEST

from .. import ranks_sharding, trainers
from ..ranks_sharding import FULL, SHARED, begun_and_whole, trained
from ..trainers import lasting, losses, told

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("warm_ranks")]

BOTH = pytest.mark.parametrize(("name", "h", "lora"), [("shared", SHARED, 4), ("full", FULL, 0)])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train whole models in one process, to the end and to half of it."""
    folder = tmp_path_factory.mktemp("alone")
    for name, h, lora in (("shared", SHARED, 4), ("full", FULL, 0)):
        begun_and_whole(model, folder, name, h, lora)
    return folder


@pytest.fixture(scope="module")
def parts(model: Path, alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train models in parts in two processes, which also finish a training that one process began."""
    begun = [alone / f"{name}-begun" for name in ("shared", "full")]
    return trainers.in_ranks(ranks_sharding.__name__, model, begun, lambda: tmp_path_factory.mktemp("parts"))


def saved(folder: Path) -> dict[str, Any]:
    """Return the latest checkpoint's contents."""
    state = checkpoint.read(folder, json.loads((folder / LATEST / checkpoint.IDENTITY_FILE).read_text()))
    assert state is not None
    return state


@BOTH
def test_parts_learn_what_the_whole_learns(
    name: str, h: HierarchicalConfig, lora: int, alone: Path, parts: Path
) -> None:
    """Two ranks with different micro-batches, one rank with more than the other: losses, norms and all."""
    wanted = losses(alone / name)
    assert len(wanted) > 12 and len(set(wanted)) > 8
    assert losses(parts / name) == pytest.approx(wanted, abs=1e-9)
    for ours, theirs in zip(lasting(parts / name), lasting(alone / name), strict=True):
        assert "actor/grad_norm" in theirs
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@BOTH
def test_a_rank_holds_half(name: str, h: HierarchicalConfig, lora: int, parts: Path) -> None:
    """Half of the trained and of the frozen weights, and of the moments; the generating copy holds no weights between
    phases."""
    both = told(parts, name)
    for made in both:
        assert 0.45 < made["own"] / made["all"] < 0.55
        assert 0.45 < made["own_moments"] / made["all_moments"] < 0.55
        assert made["speaking"] == 0
    assert sum(made["own"] for made in both) == both[0]["all"]
    assert both[0]["sha256"] == both[1]["sha256"]


@BOTH
def test_a_loss_that_is_no_number_on_one_rank_stops_both(
    name: str, h: HierarchicalConfig, lora: int, parts: Path
) -> None:
    for made in (one["nan"] for one in told(parts, name)):
        assert "actor: its loss is nan" in made["said"] and made["moved"] == 0.0


@BOTH
def test_what_parts_began_the_whole_ends(
    name: str, h: HierarchicalConfig, lora: int, model: Path, alone: Path, parts: Path
) -> None:
    begun = losses(parts / f"{name}-stopped")
    assert 0 < len(begun) < len(losses(alone / name))
    trained(model, parts / f"{name}-stopped", h, lora)
    assert losses(parts / f"{name}-stopped") == pytest.approx(losses(alone / name), abs=1e-9)


@BOTH
def test_what_the_whole_began_parts_end(name: str, h: HierarchicalConfig, lora: int, alone: Path, parts: Path) -> None:
    assert losses(parts / f"{name}-begun") == pytest.approx(losses(alone / name), abs=1e-9)


@BOTH
def test_checkpoint_and_policy_are_whole(
    name: str, h: HierarchicalConfig, lora: int, model: Path, alone: Path, parts: Path
) -> None:
    """Joined, they have the names, shapes and numbers of an unsharded run; an exported actor loads."""
    ours, theirs = (saved(folder / name) for folder in (parts, alone))
    for role in ("actor", "guidance"):
        assert list(ours["trained"][role]) == list(theirs["trained"][role])
        for what, tensor in ours["trained"][role].items():
            assert type(tensor) is torch.Tensor
            assert float((tensor - theirs["trained"][role][what]).abs().max()) < 1e-9
        for at, moments in ours["policies"]["optimizers"][role]["state"].items():
            for what, value in moments.items():
                assert type(value) is torch.Tensor
                assert value.shape == theirs["policies"]["optimizers"][role]["state"][at][what].shape
    loaded = load_policy(PolicyConfig(model_name=str(model), device="cpu"), parts / f"{name}-policy")
    here = {path.removeprefix("base_model.model."): tensor for path, tensor in loaded.model.named_parameters()}
    for what, tensor in ours["trained"]["actor"].items():
        named = (
            what.removeprefix("base_model.model.")
            .replace("lora_A.", "lora_A.default.")
            .replace("lora_B.", "lora_B.default.")
        )
        assert float((here[named].double() - tensor).abs().max()) < 1e-6


@BOTH
def test_each_rank_writes_its_half_of_a_checkpoint(
    name: str, h: HierarchicalConfig, lora: int, alone: Path, parts: Path
) -> None:
    place = (parts / name / LATEST).resolve()
    assert [path.name for path in sorted(place.glob("part-*"))] == ["part-00001-of-00002.pt", "part-00002-of-00002.pt"]
    assert "trained" not in torch.load(place / checkpoint.STATE_FILE, weights_only=True)
    whole = sum(
        tensor.numel() for role in ("actor", "guidance") for tensor in saved(alone / name)["trained"][role].values()
    )
    for path in place.glob("part-*"):
        part = torch.load(path, weights_only=True)["trained"]
        own = sum(value["part"].numel() for role in ("actor", "guidance") for value in part[role].values())
        assert 0.4 < own / whole < 0.6


def test_what_cannot_lie_in_parts_is_refused(model: Path) -> None:
    policy = PolicyConfig(model_name=str(model), lora_r=4, device="cpu")
    split = replace(SHARED, placement="split", shards="fsdp")
    with pytest.raises(UsageError, match=r"hierarchical\.shards=fsdp: with placement=split .* or full"):
        build_roles(policy, split, 0, devices=Devices.all_on("cpu"))
    with pytest.raises(UsageError, match=r"hierarchical\.shards=fsdp: 4-bit weights .*policy.load_in_4bit=false"):
        build_roles(
            replace(policy, load_in_4bit=True), replace(SHARED, shards="fsdp"), 0, devices=Devices.all_on("cpu")
        )
