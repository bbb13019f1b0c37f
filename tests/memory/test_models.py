"""Models by name: their config.json, parameters as published, estimates, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.errors import InputError, UsageError
from r2v.memory.model_registry import MODEL_CONFIGS
from r2v.memory.models import counted, estimated, known_model, values_of

PARAMETERS = {
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b": 999_885_952,
    "google/gemma-3-4b": 4_300_079_472,
    "google/gemma-3-12b": 12_187_325_040,
    "google/gemma-3-27b": 27_432_406_640,
    "microsoft/Phi-3.5-mini": 3_821_079_552,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/Phi-4-mini": 3_836_021_760,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-2407": 12_247_782_400,
    "mistralai/Mistral-Large-2407": 122_610_069_504,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_630_071_296,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "LiquidAI/LFM2-350M": 354_483_968,
    "LiquidAI/LFM2-1.2B": 1_170_340_608,
    "FacebookAI/roberta-base": 124_645_632,
    "FacebookAI/roberta-large": 355_359_744,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_as_published(name: str) -> None:
    assert known_model(name).sizes.parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_an_estimate_is_near_the_count(name: str) -> None:
    """Without towers that read images: no text passes them."""
    assert estimated(MODEL_CONFIGS[name]).total == pytest.approx(known_model(name).sizes.parameters, rel=0.12)
    assert estimated(MODEL_CONFIGS[name]).per_token == pytest.approx(known_model(name).sizes.per_token, rel=0.12)


def test_adapters_of_rank_16() -> None:
    assert 16 * known_model("Llama-3.2-3B").sizes.adapters == 24_313_856
    assert 16 * known_model("Llama-3.1-8B").sizes.adapters == 41_943_040


def test_a_token_meets_only_the_experts_it_is_sent_to() -> None:
    assert round(counted("Qwen3-30B-A3B").per_token / 1e9, 1) == 3.0
    assert round(counted("Mixtral-8x7B-v0.1").per_token / 1e9, 1) == 12.7
    assert counted("Llama-3.2-3B").per_token < counted("Llama-3.2-3B").total


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Llama-3.1-8B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-30B-A3B"),
        ("google/gemma-3-4b-it", "google/gemma-3-4b"),
    ],
)
def test_other_versions_of_a_shape_are_known_too(name: str, same: str) -> None:
    assert known_model(name).sizes == known_model(same).sizes


def test_a_directory_is_read_and_nothing_but_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"]))
    assert known_model(str(tmp_path)).sizes.parameters == 494_032_768


def test_a_file_of_a_registered_model_is_as_the_registry_has_it(tmp_path: Path) -> None:
    """Entries that the registry leaves out are allowed; a differing entry is not."""
    folder, registered = tmp_path / "Qwen2.5-0.5B", MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"]
    folder.mkdir()
    for change, same in (({"use_cache": True}, True), ({"hidden_size": 64}, False)):
        (folder / "config.json").write_text(json.dumps(registered | change))
        assert (values_of(str(folder)) == registered) is same


def test_a_model_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean meta-llama/Llama-3.2-3B"):
        known_model("meta-llama/Llama-3.2-3")


def test_a_model_of_another_size_is_refused_with_what_is_known() -> None:
    with pytest.raises(InputError, match="known are Llama-3, .* name a directory that holds its config.json") as caught:
        known_model("acme/Giraffe-9B")
    assert "did you mean" not in str(caught.value)


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    values = MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"] | {"quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match="quantization_config .*gptq"):
        counted(str(tmp_path))


def test_a_config_without_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="no usable 'vocab_size'"):
        estimated({key: value for key, value in MODEL_CONFIGS["Qwen/Qwen2.5-0.5B"].items() if key != "vocab_size"})


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(InputError, match="not a JSON object"):
        known_model(str(tmp_path))
