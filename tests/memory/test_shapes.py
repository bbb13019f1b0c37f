"""Parameters, adapters and cache bytes of models, against what their cards and the facts say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from r2v.errors import InputError, UsageError
from r2v.hrl.algorithm.critic import DoubleCritic
from r2v.hrl.models.encoders import ValueModel
from r2v.memory.model_registry import MODEL_CONFIGS
from r2v.memory.shapes import critic_heads, from_config, shape_of, value_head

PARAMETERS = {
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "LiquidAI/LFM2-350M": 354_483_968,
    "LiquidAI/LFM2-1.2B": 1_170_340_608,
    "FacebookAI/roberta-base": 124_645_632,
    "FacebookAI/roberta-large": 355_359_744,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_as_published(name: str) -> None:
    assert shape_of(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize(
    "name",
    [
        "tiny",
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen3-0.6B",
        "LiquidAI/LFM2-350M",
        "meta-llama/Llama-3.2-1B",
        "FacebookAI/roberta-base",
    ],
)
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    shape = shape_of(name)
    values = dict(MODEL_CONFIGS.get(name) or json.loads((Path("r2v/bundled/weights/tiny") / "config.json").read_text()))
    for key in ("model_type", "dtype", "architectures", "transformers_version"):
        values.pop(key, None)
    auto = AutoModel if shape.encoder else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(AutoConfig.for_model(shape.family, **values))
    assert shape.parameters == sum(one.numel() for one in model.parameters())


def test_adapters_of_rank_16() -> None:
    assert shape_of("Llama-3.2-3B").lora_parameters(16) == 24_313_856
    assert shape_of("Llama-3.1-8B").lora_parameters(16) == 41_943_040


def test_cache_bytes_per_token() -> None:
    shape = shape_of("Llama-3.2-3B")
    assert shape.kv_bytes_per_token(2) == 114_688
    assert 128 * 1024 * shape.kv_bytes_per_token(2) / 2**30 == 14.0
    assert shape_of("LFM2-350M").kv_bytes_per_token(2) == 6 * 2 * 8 * 64 * 2, "only its attention layers have a cache"


def test_heads_of_the_critic_are_those_it_has() -> None:
    """ArCHer's four have 5.91 M parameters on roberta-base."""
    for size in (768, 1024):
        critic, value = DoubleCritic("cpu", nn.Identity(), size), ValueModel(nn.Identity(), size, (768, 768))
        assert sum(one.parameters for one in critic_heads(size)) == sum(one.numel() for one in critic.parameters())
        assert sum(one.parameters for one in value_head(size)) == sum(one.numel() for one in value.parameters())
    four = sum(one.parameters for one in critic_heads(768)) - sum(one.parameters for one in value_head(768))
    assert four == 5_907_460


def test_a_directory_is_read_and_nothing_but_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"]))
    assert shape_of(str(tmp_path)).parameters == 494_032_768


def test_a_model_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean meta-llama/Llama-3.2-3B"):
        shape_of("meta-llama/Llama-3.2-3")


def test_a_family_without_arithmetic_is_refused() -> None:
    with pytest.raises(UsageError, match="model_type t5 cannot be planned for; allowed: lfm2, llama"):
        from_config({"model_type": "t5", "hidden_size": 8})


def test_a_config_without_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="no usable 'vocab_size'"):
        from_config({key: value for key, value in MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"].items() if key != "vocab_size"})


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InputError, match="not a JSON object"):
        shape_of(str(tmp_path))
