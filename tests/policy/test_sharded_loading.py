"""Reading a model once for several ranks; `test_ranks.py` trains on the result."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from r2v.config import PolicyConfig
from r2v.policy.load import load_policy
from r2v.policy.sharded_loading import agree_on_dtypes, from_rank0, room_for

from .. import tiny_models
from . import two_ranks


@pytest.fixture
def base(tmp_path: Path) -> Path:
    two_ranks.save_base(tmp_path / "base")
    return tmp_path / "base"


def _as_rank(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process appear as a rank; it forms no group."""
    for name, value in (("R2V_LAUNCH", "none"), ("RANK", str(number)), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)


def test_room_has_the_names_shapes_and_ties_of_the_model(base: Path) -> None:
    room, model = room_for(base), two_ranks.loaded().model
    weights = dict(model.named_parameters())
    assert {name: (w.shape, w.requires_grad) for name, w in room.named_parameters()} == {
        name: (w.shape, w.requires_grad) for name, w in weights.items()
    }
    assert room.lm_head.weight is room.model.embed_tokens.weight
    assert not any(tensor.is_meta for tensor in (*room.parameters(), *room.buffers()))
    for name, buffer in model.named_buffers():
        assert torch.equal(dict(room.named_buffers())[name], buffer)
    addresses = [weight.data_ptr() for weight in room.parameters()]
    assert len(set(addresses)) == len(addresses), "an optimizer knows its weights by them"


def test_room_takes_no_memory(tmp_path: Path) -> None:
    """For 240 MB of weights less than a tenth of that becomes resident."""
    config = LlamaConfig(
        vocab_size=20_000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8
    )
    config.architectures = [LlamaForCausalLM.__name__]
    config.save_pretrained(tmp_path)
    before = psutil.Process().memory_info().rss
    room = room_for(tmp_path)
    size = sum(weight.numel() * weight.element_size() for weight in room.parameters())
    assert size > 2e8 and psutil.Process().memory_info().rss - before < size / 10


def test_rank_0_reads_the_weights_and_no_other_rank_does(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = PolicyConfig(model_name=str(base), lora_r=2, device="cpu")
    whole = load_policy(policy, for_training=True, sharded=True).model
    (base / "model.safetensors").unlink()
    _as_rank(1, monkeypatch)
    room = load_policy(policy, for_training=True, sharded=True).model
    assert {name: w.shape for name, w in room.named_parameters()} == {n: w.shape for n, w in whole.named_parameters()}
    adapters = [
        (a, b) for (name, a), b in zip(room.named_parameters(), whole.parameters(), strict=True) if "lora" in name
    ]
    assert adapters and all(torch.equal(a, b) for a, b in adapters), "small, and drawn alike"


def test_a_folder_of_adapters_is_merged_by_rank_0_alone(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = PolicyConfig(model_name=str(base), lora_r=2, device="cpu")
    adapted = load_policy(policy, for_training=True).model
    adapted.save_pretrained(tmp_path / "adapters")
    tiny_models.tokenizer().save_pretrained(tmp_path / "adapters")
    on_adapters = PolicyConfig(model_name=str(tmp_path / "adapters"), device="cpu")
    merged = load_policy(on_adapters, for_training=True, sharded=True).model
    _as_rank(1, monkeypatch)
    room = load_policy(on_adapters, for_training=True, sharded=True).model
    assert [name for name, _ in room.named_parameters()] == [name for name, _ in merged.named_parameters()]


def test_a_plain_process_agrees_with_itself(base: Path) -> None:
    assert from_rank0(7) == 7
    room = room_for(base)
    agree_on_dtypes(room)
    assert {weight.dtype for weight in room.parameters()} == {torch.float32}
