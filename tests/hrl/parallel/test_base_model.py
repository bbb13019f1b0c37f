"""Adapters of a base model: fused in decoding, in the base's type in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from r2v.config import PolicyConfig
from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.models.roles import LanguageRole, build_roles
from r2v.hrl.parallel.base_model import fused_adapters

from ..playing import CPU, build, save_model, settings, stirred

pytestmark = pytest.mark.numerical


def test_fused_adapters_compute_what_peft_does(tmp_path: Path) -> None:
    """For each adapter and for the base alone; the model is as before afterwards."""
    roles, ids = stirred(build(save_model(tmp_path, "llama"))), torch.arange(3, 15).reshape(2, 6)
    seen: list[torch.Tensor] = []
    language: tuple[LanguageRole, ...] = ("actor", "guidance", "reference")
    for role in language:
        with roles.using(role) as model, torch.no_grad():
            peft = model(ids).logits
            with fused_adapters(model):
                fused = model(ids).logits
            assert torch.equal(model(ids).logits, peft)
        torch.testing.assert_close(fused, peft, rtol=0, atol=1e-12)
        seen.append(peft)
    assert not torch.allclose(seen[0], seen[1]) and not torch.allclose(seen[0], seen[2])


def test_a_bfloat16_base_keeps_no_float32_inputs_of_its_adapters(tmp_path: Path) -> None:
    """Their gradients are those with such copies, to bfloat16's rounding, and float32."""
    policy = PolicyConfig(model_name=str(save_model(tmp_path, "llama")), lora_r=4, device="cpu", dtype="bfloat16")
    roles = stirred(build_roles(policy, settings("shared"), 3, devices=CPU))
    rows = pad_sequences([[3, 9, 10, 4], [3, 11, 4]], [[20, 21, 2], [9, 9, 12]])
    kept: dict[bool, dict[int, int]] = {False: {}, True: {}}
    gradients = []
    for copies in (False, True):

        def pack(tensor: torch.Tensor, copies: bool = copies) -> torch.Tensor:
            kept[copies][tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with roles.using("actor") as model:
            for layer in model.modules():
                if hasattr(layer, "cast_input_dtype_enabled"):
                    assert copies or not layer.cast_input_dtype_enabled
                    layer.cast_input_dtype_enabled = copies
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = completion_logprobs(model, rows).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        grads = [weight.grad for weight in roles.parameters("actor") if weight.grad is not None]
        gradients.append(torch.cat([grad.flatten() for grad in grads]))
        for weight in roles.parameters("actor"):
            weight.grad = None
    lean, peft = gradients
    assert lean.dtype == torch.float32
    assert float((lean - peft).norm()) < 0.02 * float(peft.norm())
    assert sum(kept[False].values()) < sum(kept[True].values())
