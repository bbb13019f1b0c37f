"""Placement of roles: the choices of `auto`, and the settings that are refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel.placement import Devices, devices_of, first_device, placement_of, split_ranks

from ..playing import save_model


@pytest.mark.parametrize(
    ("asked", "lora", "gpus", "found"),
    [
        ("auto", 16, 0, "shared"),
        ("auto", 0, 0, "full"),
        ("auto", 16, 4, "shared"),
        ("shared", 4, 1, "shared"),
        ("full", 4, 0, "full"),
        ("full", 0, 1, "full"),
        ("split", 0, 2, "split"),
        ("split", 4, 4, "split"),
        ("split", 4, None, "split"),
    ],
)
def test_the_placement_that_is_asked_for_or_fits(asked: str, lora: int, gpus: int | None, found: str) -> None:
    assert placement_of(asked, lora, gpus) == found


@pytest.mark.parametrize(
    ("asked", "lora", "gpus", "ranks", "said"),
    [
        ("shared", 0, 2, 1, "policy.lora_r=0"),
        ("split", 4, 0, 1, "0 are visible"),
        ("split", 4, 1, 1, "1 is visible"),
        ("split", 0, 3, 1, "3 are visible"),
        ("split", 4, 2, 2, "training.ranks=1"),
        ("split", 4, 4, 3, "training.ranks=2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(asked: str, lora: int, gpus: int, ranks: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"hierarchical.placement={asked}.*{said}.*hierarchical.placement=") as refusal:
        placement_of(asked, lora, gpus, ranks)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has what is asked for")
def test_a_machine_without_two_gpus_refuses_split_before_anything_is_loaded(tmp_path: Path) -> None:
    policy = PolicyConfig(model_name=str(tmp_path / "nowhere"), lora_r=4)
    with pytest.raises(UsageError, match="takes 2 GPUs"):
        build_roles(policy, HierarchicalConfig(placement="split"), 0)


def test_devices_by_hand_go_round_the_count_of_gpus(tmp_path: Path) -> None:
    policy = PolicyConfig(model_name=str(save_model(tmp_path)), lora_r=4)
    roles = build_roles(policy, HierarchicalConfig(placement="split"), 0, devices=Devices.all_on("cpu"))
    assert roles.placement == "split"


def test_split_is_the_seeds_own_and_each_process_has_two_gpus_to_itself() -> None:
    first, second = devices_of("split", "cuda"), devices_of("split", "cuda:1")
    assert (first.actor, first.critic, first.guidance, first.value) == ("cuda:0", "cuda:0", "cuda:1", "cuda:1")
    assert (second.actor, second.critic, second.guidance, second.value) == ("cuda:2", "cuda:2", "cuda:3", "cuda:3")
    assert {first.reference, first.target, second.reference, second.target} == {"cpu"}
    assert devices_of("shared", "cuda:1") == devices_of("full", "cuda:1") == Devices.all_on("cuda:1")


def test_copies_may_leave_to_the_cpu_what_does_not_learn(tmp_path: Path) -> None:
    found = devices_of("full", "cuda:1", offload=True)
    assert {role for role, device in vars(found).items() if device == "cpu"} == {"reference", "target"}
    assert set(vars(found).values()) == {"cuda:1", "cpu"}
    policy = PolicyConfig(model_name=str(save_model(tmp_path)), lora_r=4, device="cpu")
    with pytest.raises(UsageError, match=r"hierarchical\.offload=true: with placement=shared .*placement=full"):
        build_roles(policy, HierarchicalConfig(offload=True), 0)
    with pytest.raises(UsageError, match=r"hierarchical\.offload=true: with shards=fsdp .*offload=false"):
        build_roles(policy, HierarchicalConfig(offload=True, placement="full", shards="fsdp"), 0)


@pytest.mark.parametrize(("gpus", "found"), [(4, 2), (5, 2), (2, 1), (1, 1), (0, 1)])
def test_split_has_a_process_for_each_pair_of_gpus(gpus: int, found: int) -> None:
    assert split_ranks(gpus) == found


def test_processes_of_split_communicate_on_gpus_of_their_own() -> None:
    assert [first_device("split", f"cuda:{rank}") for rank in range(3)] == ["cuda:0", "cuda:2", "cuda:4"]
    assert first_device("shared", "cuda:1") == "cuda:1" and first_device("split", "cpu") == "cpu"
