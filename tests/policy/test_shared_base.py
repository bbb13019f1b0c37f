"""One base in memory: every adapter on it acts as it would alone, whichever others are in use."""

from __future__ import annotations

import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import PolicyConfig
from r2v.errors import InputError
from r2v.policy.export import export
from r2v.policy.load import Loaded, load_policy
from r2v.policy.shared_base import acting_policy, shared_base
from tests import tolerance
from tests.policy.bases import FAMILIES, saved_base, stirred

pytestmark = pytest.mark.numerical

IDS = torch.tensor([[5, 9, 11, 30, 7]])


def logits(loaded: Loaded) -> Any:
    with torch.inference_mode():
        return loaded.model(IDS).logits


def project(folder: Path, family: str = "llama", ranks: tuple[int, ...] = (2, 2, 4)) -> tuple[PolicyConfig, list[Path]]:
    """Make a base and three sets of adapters, one of another rank."""
    base, finals = saved_base(family, folder / "base"), []
    for number, rank in enumerate(ranks):
        policy = PolicyConfig(model_name=str(base), lora_r=rank, device="cpu")
        torch.manual_seed(number)
        finals.append(folder / str(number) / "final")
        export(stirred(load_policy(policy, for_training=True, seed=number)), finals[-1])
    return PolicyConfig(model_name=str(base), lora_r=2, device="cpu"), finals


@pytest.mark.parametrize("family", FAMILIES)
def test_each_adapter_acts_as_it_does_on_a_base_of_its_own(family: str, tmp_path: Path) -> None:
    policy, finals = project(tmp_path, family)
    alone = [logits(load_policy(policy, final)) for final in (*finals, None)]
    shared = [acting_policy(policy, final) for final in (*finals, None)]
    near = tolerance.of_logits(load_policy(policy).model, alone[0], torch.float32)
    for _ in range(2):  # in any order, and again
        for mine, theirs in reversed(list(zip(shared, alone, strict=True))):
            torch.testing.assert_close(logits(mine), theirs, rtol=0, atol=near)
    assert float((alone[0] - alone[1]).abs().max()) > 100 * near


def test_there_is_one_base_and_it_leaves_with_the_last_of_them(tmp_path: Path) -> None:
    policy, finals = project(tmp_path)
    shared = [acting_policy(policy, final) for final in (*finals, None)]
    weights = {loaded.model.get_input_embeddings().weight.data_ptr() for loaded in shared}
    assert len(weights) == 1
    assert not any(p.requires_grad for p in shared[0].model.parameters()) and not shared[0].model.training
    base = weakref.ref(shared_base(policy))
    assert base() is shared_base(PolicyConfig(model_name=policy.model_name, lora_r=8, device="cpu"))
    del shared
    gc.collect()
    assert base() is None


def test_two_at_work_at_once_do_not_meet(tmp_path: Path) -> None:
    policy, finals = project(tmp_path)
    shared = [acting_policy(policy, final) for final in finals]
    wanted = [logits(loaded) for loaded in shared]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(30):
            for got, want in zip(pool.map(logits, shared), wanted, strict=True):
                assert torch.equal(got, want)


def test_whole_weights_are_a_model_of_their_own(tmp_path: Path) -> None:
    base = saved_base("llama", tmp_path / "base")
    policy = PolicyConfig(model_name=str(base), device="cpu")
    export(load_policy(policy, for_training=True), tmp_path / "final")
    whole, bare = acting_policy(policy, tmp_path / "final"), acting_policy(policy)
    assert torch.equal(logits(whole), logits(bare)) and whole.model is not bare.model


def test_adapters_of_another_model_are_refused_and_harm_nobody(tmp_path: Path) -> None:
    policy, finals = project(tmp_path)
    other, _ = project(tmp_path / "other", "lfm2", ranks=())
    wanted = logits(acting_policy(policy, finals[0]))
    with pytest.raises(InputError, match="final: adapters of another base: trained on"):
        acting_policy(other, finals[0])
    assert torch.equal(logits(acting_policy(policy, finals[0])), wanted)


def test_adapters_are_refused_once_the_weights_under_them_are_others(tmp_path: Path) -> None:
    """By each way of loading; adapters of an earlier version, which record no base, are accepted without a check."""
    policy, finals = project(tmp_path)
    assert json.loads((finals[0] / "base.json").read_text())["model_name"] == policy.model_name
    weights = Path(policy.model_name) / "model.safetensors"
    saved_base("llama", tmp_path / "other", seed=7)
    weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    for load in (acting_policy, load_policy):
        with pytest.raises(InputError, match="final: adapters of another base"):
            load(policy, finals[0])
    (finals[0] / "base.json").unlink()
    assert load_policy(policy, finals[0]).base


def test_a_base_on_which_adapters_were_refused_is_given_to_nobody_else(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    policy, finals = project(tmp_path)
    file = finals[1] / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(sorted(tensors)[-1])  # the others still load
    save_file(tensors, file)
    alone = logits(load_policy(policy))
    held = shared_base(policy)
    with pytest.raises(InputError, match=r"cannot load .*final \(no "):
        acting_policy(policy, finals[1])
    assert shared_base(policy) is not held
    near = tolerance.of_logits(load_policy(policy).model, alone, torch.float32)
    torch.testing.assert_close(logits(acting_policy(policy)), alone, rtol=0, atol=near)
