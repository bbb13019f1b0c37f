"""Language models with DeepSpeed engines, over two processes (ZeRO-2 and ZeRO-3, gloo on a CPU), learn the same as
whole ones, up to the rounding of float32 masters."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.training import checkpoint
from r2v.policy.load import load_policy
from r2v.storage.checkpoint import LATEST

from .. import ranks_zero, trainers
from ..ranks_sharding import begun_and_whole, trained
from ..ranks_zero import CASES
from ..trainers import lasting, losses, told

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("warm_ranks")]

NEAR = 1e-7
"""Allowed difference between losses and those of a run in float64; 1e-8 was measured."""
EACH = pytest.mark.parametrize("name", CASES)
needed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed; pip install 'r2v[gpu]'"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train whole models in one process, to the end and to half of it."""
    folder = tmp_path_factory.mktemp("alone")
    for name, (h, lora, _) in CASES.items():
        begun_and_whole(model, folder, name, replace(h, shards="none"), lora)
    return folder


@pytest.fixture(scope="module")
def parts(model: Path, alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with engines in two processes, which also finish a training that one process began."""
    begun = [alone / f"{name}-begun" for name in CASES]
    return trainers.in_ranks(ranks_zero.__name__, model, begun, lambda: tmp_path_factory.mktemp("parts"))


@needed
@EACH
def test_engines_learn_what_the_whole_learns(name: str, alone: Path, parts: Path) -> None:
    """Two ranks with different micro-batches, one rank with more than the other: losses, clipped norms and all."""
    wanted = losses(alone / name)
    assert len(wanted) > 12 and len(set(wanted)) > 8
    assert losses(parts / name) == pytest.approx(wanted, abs=NEAR)
    for ours, theirs in zip(lasting(parts / name), lasting(alone / name), strict=True):
        assert theirs["actor/grad_norm"] > trainers.BASE.grad_clip or theirs["guidance/grad_norm"] > 0
        assert ours == pytest.approx(theirs, rel=10 * NEAR, abs=10 * NEAR)


@needed
@EACH
def test_a_rank_holds_half(name: str, parts: Path) -> None:
    """Half of the moments; under ZeRO-3 half of the weights too, trained and frozen."""
    both = told(parts, name)
    for made in both:
        assert 0.45 < made["own_moments"] / (2 * made["learning"]) < 0.55
        share = made["own"] / made["all"]
        assert (share == 1 and made["there"] == made["all"]) if name == "zero2" else 0.45 < share < 0.55
    assert both[0]["sha256"] == both[1]["sha256"]


@needed
@EACH
def test_what_is_no_number_on_one_rank_stops_both(name: str, parts: Path) -> None:
    """The loss is no number, or its gradient alone."""
    for made in (one["nan"] for one in told(parts, name)):
        assert "actor: its loss is nan" in made[0]["said"] and "gradient's norm inf" in made[1]["said"]
        assert [one["moved"] for one in made] == [0.0, 0.0]


@needed
def test_a_float64_model_takes_the_same_step_whether_or_not_the_processor_supports_fp16(parts: Path) -> None:
    for steps in told(parts, "first_step"):
        loss, norm = steps["True"]
        assert loss > 0 and norm > 0
        assert steps["False"] == [loss, norm]


@needed
@EACH
def test_a_run_that_was_cut_goes_on_to_the_same_bits(name: str, parts: Path) -> None:
    assert losses(parts / f"{name}-stopped") == losses(parts / name)
    assert lasting(parts / f"{name}-stopped") == lasting(parts / name)


@needed
@EACH
def test_what_engines_began_the_whole_ends_and_the_other_way_round(
    name: str, model: Path, alone: Path, parts: Path
) -> None:
    h, lora, _ = CASES[name]
    begun = losses(parts / f"{name}-left")
    assert 0 < len(begun) < len(losses(alone / name))
    trained(model, parts / f"{name}-left", replace(h, shards="none"), lora)
    for ending in ("left", "begun"):
        assert losses(parts / f"{name}-{ending}") == pytest.approx(losses(alone / name), abs=NEAR)


@needed
@EACH
def test_checkpoint_and_policy_are_whole(name: str, model: Path, alone: Path, parts: Path) -> None:
    """They have the names, shapes and numbers of an unsharded run; an exported actor loads."""
    ours, theirs = (
        torch.load(folder / name / LATEST / checkpoint.STATE_FILE, weights_only=True) for folder in (parts, alone)
    )
    for role in ("actor", "guidance"):
        assert list(ours["trained"][role]) == list(theirs["trained"][role])
        for what, tensor in ours["trained"][role].items():
            assert float((tensor - theirs["trained"][role][what]).abs().max()) < 10 * NEAR
        here, there = ours["policies"]["optimizers"][role], theirs["policies"]["optimizers"][role]
        assert here["param_groups"] == there["param_groups"] and here["state"].keys() == there["state"].keys()
        for at, moments in here["state"].items():
            assert moments["step"] == there["state"][at]["step"]
            for what, value in moments.items():
                assert value.shape == there["state"][at][what].shape
                assert float((value - there["state"][at][what]).abs().max()) < 10 * NEAR
    loaded = load_policy(PolicyConfig(model_name=str(model), device="cpu"), parts / f"{name}-policy")
    here = {path.removeprefix("base_model.model."): tensor for path, tensor in loaded.model.named_parameters()}
    for what, tensor in ours["trained"]["actor"].items():
        named = (
            what.removeprefix("base_model.model.")
            .replace("lora_A.", "lora_A.default.")
            .replace("lora_B.", "lora_B.default.")
        )
        assert float((here[named].double() - tensor).abs().max()) < 1e-6


@pytest.mark.parametrize("shards", ["zero2", "zero3"])
def test_what_cannot_have_an_engine_is_refused(shards: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, (h, _, _) = PolicyConfig(model_name=str(model), lora_r=4, device="cpu"), CASES["zero3"]
    for placement, said in (
        ("shared", "one base, .* set hierarchical.placement=full, or shards=fsdp"),
        ("split", "with placement=split .* or full"),
    ):
        with pytest.raises(UsageError, match=rf"hierarchical\.shards={shards}: .*{said}"):
            build_roles(policy, replace(h, shards=shards, placement=placement), 0, devices=Devices.all_on("cpu"))
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(
        UsageError,
        match=rf"{shards}: deepspeed is not installed; pip install 'r2v\[gpu\]', or set "
        "hierarchical.shards=fsdp",
    ):
        build_roles(policy, replace(h, shards=shards), 0, devices=Devices.all_on("cpu"))
