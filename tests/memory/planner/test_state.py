"""Bytes of training state: known figures, worked out by hand or measured."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from r2v.memory.models import known_model
from r2v.memory.planner.roles import devices, whole_state
from r2v.memory.planner.state import frozen, sharded, trained
from r2v.memory.planner.training_job import Strategy, TrainingJob
from r2v.memory.sizes import GIB, gib, mem_header, parse_size
from tests.memory.measuring import model

HEAD = 768 * 769 + 768 * 769 + 769
"""Parameters of a head: two hidden layers of 768."""
LLAMA, ROBERTA = known_model("meta-llama/Llama-3.2-3B"), known_model("FacebookAI/roberta-base")
CRITICS = {"critic": ROBERTA.sizes.parameters + 5_907_460 + HEAD, "value": ROBERTA.sizes.parameters + HEAD}
"""Parameters of ArCHer's critic with four heads on two texts or one, of a floor's; and of a value model's one."""
SEED = TrainingJob(
    stage="hierarchical", code="", model=LLAMA, critic=ROBERTA, value=True, lora_rank=0, precision="float32"
)


def roles(job: TrainingJob, placement: str = "full") -> dict[str, float]:
    """Return the training state in GiB of each role."""
    strategy = Strategy(placement=placement)  # type: ignore[arg-type]
    return {role.name: role.state.total / GIB for role in devices(job, strategy, 1, CRITICS)[0].roles}


def test_full_training_of_the_seed_is_112_GiB() -> None:
    assert round(whole_state(SEED, CRITICS) / GIB, 1) == 112.0


"""Parameters that the facts do not count: the floor's head, in the critic and its target; and inside the value
function."""
MORE = {"critic": 16 * HEAD / GIB, "target": 4 * HEAD / GIB, "value": 16 * (HEAD - 769) / GIB}


def test_shared_base_is_9_14_GiB_and_its_parts() -> None:
    parts = {
        name: round(size, 2)
        for name, size in roles(replace(SEED, lora_rank=16, precision="mixed", value=False), "shared").items()
    }
    assert parts == {"base": 5.98, "actor": 0.36, "guidance": 0.36, "critic": 1.96, "target": 0.49}
    job = replace(SEED, lora_rank=16, precision="mixed", value=False)
    assert round(whole_state(job, CRITICS) / GIB - MORE["critic"] - MORE["target"], 2) == 9.14
    assert round(whole_state(SEED, CRITICS) / GIB - sum(MORE.values()), 2) == 112.00
    assert round(whole_state(SEED, CRITICS) / whole_state(job, CRITICS)) == 12


@pytest.mark.parametrize(("precision", "width", "answer"), [("bfloat16", 2, 22.2), ("float32", 4, 40.2)])
def test_the_seeds_load_time_weights_with_trained_critics(precision: str, width: int, answer: float) -> None:
    """Three copies of the language model's weights, critic and value function in training, the target."""
    critics = {name: size - MORE[name] for name, size in roles(SEED).items() if name in MORE}
    assert round((3 * LLAMA.sizes.parameters * width) / GIB + sum(critics.values()), 1) == answer


def test_an_fp32_AdamW_step_of_the_3B_peaks_at_59_84_GiB() -> None:
    state = trained(LLAMA.sizes.parameters, width=4)
    assert gib(state.at_step) == "59.84", "as torch's MemTracker measured it"
    assert round(state.total / GIB) == 48
    assert round((state.optimizer + state.step) / GIB, 1) == 35.9
    assert round(state.optimizer / GIB, 1) == 23.9


def test_a_pure_bf16_step_is_within_one_percent_of_the_measured_30_17() -> None:
    assert trained(LLAMA.sizes.parameters, width=2).at_step / GIB == pytest.approx(30.17, rel=0.01)


def test_fused_and_8_bit_optimizers_have_no_temporaries() -> None:
    assert trained(1000, width=4, optimizer="adamw_fused").at_step == 16_000
    assert trained(256_000, width=4, optimizer="adamw_8bit").at_step == 256_000 * 10 + 8000
    own = trained(256_000, width=4, optimizer="paged_adamw_8bit", embedding=51_200)
    assert own.optimizer == 204_800 * 2 + 6400 + 51_200 * 8


def test_moving_reference_and_target_saves_12_and_half_a_GiB() -> None:
    found = roles(SEED)
    assert (round(found["reference"]), round(found["target"], 2)) == (12, 0.49)


def test_policy_guidance_and_frozen_reference_are_36_bytes_a_parameter() -> None:
    found = roles(replace(SEED, critic=None))
    assert sum(found.values()) * GIB == 36 * LLAMA.sizes.parameters


def test_nf4_base() -> None:
    """Measured: .61 bytes a parameter for a whole model with bfloat16 rest."""
    shape = known_model("meta-llama/Llama-3.1-8B").sizes
    packed = frozen(shape, 2, four_bit=True).weights
    assert packed == shape.packed * 0.5625 + (shape.parameters - shape.packed) * 2
    assert frozen(shape, 2).weights == 2 * shape.parameters


def test_nf4_weights_are_bitsandbytes_own(tmp_path: Path) -> None:
    """To the byte: as it is loaded, the rest in bfloat16, and prepared for training, the rest in float32."""
    pytest.importorskip("bitsandbytes")
    import torch
    from peft import prepare_model_for_kbit_training
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    values = {
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 704,
        "vocab_size": 2048,
        "tie_word_embeddings": False,
    }
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **values), dtype=torch.bfloat16).save_pretrained(
        tmp_path
    )
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        dtype="auto",
        device_map={"": "cpu"},
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        ),
    )

    def size() -> int:
        return sum(
            one.nbytes + (one.quant_state.absmax.nbytes if hasattr(one, "quant_state") else 0)
            for one in loaded.parameters()
        )

    shape = model(values | {"model_type": "llama"}).sizes
    assert size() == frozen(shape, 2, four_bit=True).weights
    prepare_model_for_kbit_training(loaded, use_gradient_checkpointing=False)
    assert size() == frozen(shape, 4, four_bit=True).weights


def test_zero_and_fsdp_share_what_they_say() -> None:
    """ZeRO paper, table 1, in its own bytes: 2 + 2 + 12 a parameter on 8 ranks."""
    n, state = float(LLAMA.sizes.parameters), trained(LLAMA.sizes.parameters, width=4)
    assert sharded(state, LLAMA.sizes, "zero2", 8).total == pytest.approx(2 * n + 14 * n / 8)
    assert sharded(state, LLAMA.sizes, "zero3", 8).total == pytest.approx(16 * n / 8)
    assert sharded(state, LLAMA.sizes, "fsdp", 8).total == pytest.approx(16 * n / 8)
    assert sharded(state, LLAMA.sizes, "zero2", 8, 4).total == pytest.approx(4 * n + 16 * n / 8)
    assert sharded(state, LLAMA.sizes, "none", 8).gathered == state.gradients
    assert sharded(state, LLAMA.sizes, "zero3", 1) == state


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed; pip install 'r2v[gpu]'")
@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B"])
def test_zero2_is_to_the_byte_what_deepspeed_itself_estimates(name: str, ranks: int) -> None:
    """The state during the optimizer's step, as its float32 gradients are a copy made for the step. Its estimate for
    ZeRO-3 omits the 16-bit weights that a rank holds, and counts one gathered layer."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    shape = known_model(name).sizes
    state, n = trained(shape.parameters, width=4), int(shape.parameters)
    _, two = estimate_zero2_model_states_mem_needs(n, num_gpus_per_node=ranks, cpu_offload=False)
    assert sharded(state, shape, "zero2", ranks).at_step == pytest.approx(two, abs=1)
    _, three, _ = estimate_zero3_model_states_mem_needs(
        n, 0, num_gpus_per_node=ranks, cpu_offload=False, cpu_offload_params=False
    )
    assert sharded(state, shape, "zero3", ranks).at_step == pytest.approx(three + 2 * n / ranks, abs=1)


def test_a_critic_stays_float32_whatever_the_model_is() -> None:
    pure = roles(replace(SEED, lora_rank=16, precision="bfloat16"), "shared")
    assert round(pure["target"], 2) == 0.49


@pytest.mark.parametrize(
    ("text", "size"), [("44.53GiB", 47_813_723_422), ("80GB", 80 * 10**9), ("48G", 48 * 2**30), ("80", 80 * 2**30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_memory_headers_are_rounded_up() -> None:
    assert (mem_header(8 * GIB), mem_header(8 * GIB + 1)) == ("8G", "16G")
