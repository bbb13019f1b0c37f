"""Models without data: their depth, the pattern of their layers, the counts of their parameters, packed matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.memory.measured.models import config_of, pack, shared_tensors, skeleton, studied
from r2v.memory.planner.state import frozen
from tests.memory.measuring import READER, SMALL, model


@pytest.mark.parametrize(
    ("change", "start", "period", "depths"),
    [
        ({}, 0, 1, (2, 3, 4)),
        ({"num_hidden_layers": 3}, 0, 1, (3,)),
        ({"model_type": "gemma2", "head_dim": 16, "num_hidden_layers": 9}, 0, 2, (5, 7, 9)),
        ({"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 26}, 0, 6, (14, 20, 26)),
        (
            {
                "model_type": "qwen3_moe",
                "num_experts": 2,
                "moe_intermediate_size": 32,
                "mlp_only_layers": [0],
                "num_hidden_layers": 9,
            },
            1,
            1,
            (3, 4, 5),
        ),
    ],
)
def test_depths_are_whole_periods_apart(
    change: dict[str, Any], start: int, period: int, depths: tuple[int, ...]
) -> None:
    pattern = studied(SMALL | change)[0]
    assert (pattern.start, pattern.period, pattern.depths) == (start, period, depths)


def test_lists_with_an_entry_for_each_layer_are_cut_with_the_depth() -> None:
    values = SMALL | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 3, "num_hidden_layers": 6}
    config = config_of(values, 4)
    assert (config.num_hidden_layers, config.layer_types) == (4, ["conv", "full_attention"] * 2)
    assert (
        config_of({"model_type": "gemma3", "text_config": {"num_hidden_layers": 26}}, 8).text_config.num_hidden_layers
        == 8
    )


def test_a_token_meets_only_the_experts_it_is_sent_to() -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 1, "bos_token_id": 1}
    many, few = model(SMALL | experts).sizes, model(SMALL | {**experts, "num_local_experts": 1}).sizes
    # a router's row for each expert is multiplied whichever expert is chosen
    assert many.per_token - few.per_token == 5 * 3 * 64 and many.parameters > 3 * few.parameters - 64 * 700 * 3


def test_the_table_and_the_head_are_told_apart() -> None:
    tied, own = model(SMALL).sizes, model(SMALL | {"tie_word_embeddings": False}).sizes
    assert (tied.head, own.head) == (0, 700 * 64) and own.parameters - tied.parameters == 700 * 64
    assert model(READER).sizes.embedding == 64_000


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "phi3", "gemma3_text"])
def test_adapters_are_those_that_peft_makes(family: str) -> None:
    """On the experts of a mixture too: a rank for each, twice for gate and up, which are one parameter."""
    from peft import LoraConfig, get_peft_model

    values = SMALL | {"model_type": family, "head_dim": 16, "num_experts_per_tok": 2, "num_local_experts": 4}
    values |= {"num_experts": 4, "moe_intermediate_size": 32, "mlp_only_layers": [], "eos_token_id": 1}
    made = skeleton(config_of(values), torch.float32)
    with torch.device("meta"):
        settings = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = get_peft_model(made, settings, low_cpu_mem_usage=True)
    assert 8 * model(values).sizes.adapters == sum(one.numel() for one in adapted.parameters() if one.requires_grad)


def test_packed_matrices_weigh_what_the_planner_says_and_bitsandbytes_has(tmp_path: Path) -> None:
    made = skeleton(config_of(SMALL), torch.float32)
    pack(made)
    assert sum(one.nbytes for one in shared_tensors(made)) == frozen(model(SMALL).sizes, 4, four_bit=True).weights
