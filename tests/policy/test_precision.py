"""The float64 layers compute what transformers' own do, with and without a cache, padded or not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import conv1d
from transformers.cache_utils import DynamicCache

from benchmarks.recipes.tiny import build_model
from r2v.policy.precision import ShortConv, depthwise, tf32, use_float64_layers

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (3, 3), (4, 1), (9, 9), (12, 5)])
def test_depthwise_is_torchs_convolution(tokens: int, length: int) -> None:
    inputs, weight = torch.randn(2, 6, tokens, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    bias = torch.randn(6, dtype=torch.float64)
    whole = conv1d(inputs, weight[:, None], bias, padding=3, groups=6)[..., :tokens]
    torch.testing.assert_close(depthwise(inputs, weight, bias, length), whole[..., -length:], rtol=0, atol=1e-13)


def test_replies_are_the_original_models() -> None:
    original = build_model(3).double().eval()
    ours = copy.deepcopy(original)
    use_float64_layers(ours)
    assert sum(isinstance(module, ShortConv) for module in ours.modules()) == 2
    ids = torch.randint(6, 60, (3, 11))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        caches = [DynamicCache(config=model.config) for model in (original, ours)]
        for begin, end in ((0, 6), (6, 9), (9, 10), (10, 11)):
            at = (mask.cumsum(-1) - 1).clamp_min(0)[:, begin:end]
            theirs, mine = (
                model(
                    input_ids=ids[:, begin:end], attention_mask=mask[:, :end], position_ids=at, past_key_values=cache
                ).logits[mask[:, begin:end] == 1]
                for model, cache in zip((original, ours), caches, strict=True)
            )
            # The norms of the original round to float32.
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def test_tf32_lasts_as_long_as_the_training_and_is_left_alone_where_it_is_not_wanted() -> None:
    before = torch.get_float32_matmul_precision()
    with tf32(False):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="cut"), tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError("cut")
    assert torch.get_float32_matmul_precision() == before
