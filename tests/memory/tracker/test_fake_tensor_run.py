"""The planner against the bytes of real transformers, peft and AdamW, on tensors without data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.memory.model_registry import MODEL_CONFIGS, ModelConfigValues
from r2v.memory.shapes import critic_heads
from r2v.memory.sizes import GIB
from r2v.memory.tracker.fake_tensor_run import run_fake
from r2v.memory.tracker.phase_case import PhaseCase, planned
from tests.trust import drawn

SMALL: ModelConfigValues = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 320,
    "vocab_size": 4000,
    "tie_word_embeddings": True,
}
EXPERTS = SMALL | {
    "model_type": "mixtral",
    "vocab_size": 300,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
READER: ModelConfigValues = {
    "model_type": "roberta",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
}
LORA = PhaseCase(phase="actor", model=SMALL, critic=READER, micro_batch=6, tokens=192)
FULL = replace(LORA, lora_rank=0, precision="float32")
CASES = {
    "lora": LORA,
    "lora, checkpointed": replace(LORA, checkpoint=True),
    "lora, mixed": replace(LORA, precision="mixed", checkpoint=True),
    "full": FULL,
    "full, mixed, checkpointed": replace(FULL, precision="mixed", checkpoint=True),
    "one micro-batch": replace(FULL, phase="bc", chunk=None, critic=None, micro_batches=1),
    "optimizer step": replace(FULL, micro_batch=1, tokens=8),
    "guidance": replace(LORA, phase="guidance"),
    "reference": replace(LORA, phase="reference"),
    "rollout": replace(LORA, phase="rollout", micro_batch=16),
    "critic": replace(LORA, phase="critic"),
    "verifier": replace(LORA, phase="verifier", critic=None),
    "one head of keys": replace(LORA, model=SMALL | {"num_key_value_heads": 1}),
    "rollout of many layers, full": replace(
        FULL, phase="rollout", micro_batch=8, model=SMALL | {"num_hidden_layers": 6}
    ),
    "narrow inside, checkpointed": replace(
        FULL,
        lora_rank=64,
        checkpoint=True,
        micro_batch=9,
        tokens=332,
        chunk=64,
        model=SMALL | {"hidden_size": 384, "intermediate_size": 256},
    ),
    "one chunk, one micro-batch": replace(FULL, precision="bfloat16", micro_batches=1, chunk=4096),
    "bc under autocast": replace(FULL, phase="bc", precision="mixed", critic=None, chunk=None),
    "bc under autocast, adapters": replace(LORA, phase="bc", precision="mixed", critic=None, chunk=None),
    "short convolutions": replace(
        LORA,
        model=SMALL
        | {
            "model_type": "lfm2",
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    ),
    "gemma 1": replace(
        LORA, phase="bc", critic=None, chunk=None, model=SMALL | {"model_type": "gemma", "head_dim": 32}
    ),
    "gemma 2 in full": replace(
        FULL, phase="bc", critic=None, chunk=None, model=SMALL | {"model_type": "gemma2", "head_dim": 32}
    ),
    "gemma 3": replace(LORA, model=SMALL | {"model_type": "gemma3_text", "head_dim": 32}),
    "phi 3": replace(LORA, model=SMALL | {"model_type": "phi3", "pad_token_id": 0}),
    "phi 3 in full": replace(FULL, model=SMALL | {"model_type": "phi3", "pad_token_id": 0}),
    "mixture of experts": replace(LORA, phase="bc", critic=None, chunk=None, model=EXPERTS),
    "mixture of experts in full": replace(
        FULL, phase="bc", critic=None, chunk=None, precision="bfloat16", model=EXPERTS
    ),
}


@pytest.mark.parametrize("name", drawn(list(CASES), 12, "planned and tracked"))
def test_planned_and_tracked_agree(name: str) -> None:
    """The aim is 3 % in the median and 5 % at worst, never 3 % under; what is reached is 2 %."""
    seen, said = run_fake(CASES[name]).size, planned(CASES[name]).total
    assert abs(said / seen - 1) <= 0.02


def test_the_cut_of_the_3B_that_was_measured() -> None:
    """Four layers, B=8, T=1024, adapters, naive chain: 13.64 GiB, weights 1.50 of them."""
    case = PhaseCase(
        phase="actor",
        model=MODEL_CONFIGS["meta-llama/Llama-3.2-3B"] | {"num_hidden_layers": 4},
        micro_batch=8,
        tokens=1024,
        checkpoint=True,
        chunk=None,
    )
    assert planned(case).total / GIB == pytest.approx(13.64, rel=0.01)
    assert planned(case).activation / GIB == pytest.approx(12.1, rel=0.01)
    # A chunk of 8 x 128: 2.0 GiB by log-softmax (facts), and one copy of its logits more as hierarchical training
    # has it, whose logsumexp makes two in backward.
    chunked = planned(replace(case, chunk=8 * 128)).activation
    assert (chunked - 4 * 1024 * 128_256) / GIB < 2 < chunked / GIB


def test_the_3B_trained_in_full_peaks_as_measured() -> None:
    for precision, answer in (("float32", 59.84), ("bfloat16", 30.17)):
        case = PhaseCase(
            phase="bc",
            model=MODEL_CONFIGS["meta-llama/Llama-3.2-3B"],
            lora_rank=0,
            micro_batch=1,
            tokens=16,
            precision=precision,
            micro_batches=1,
        )  # type: ignore[arg-type]
        assert planned(case).total / GIB == pytest.approx(answer, rel=0.01)


def test_three_roles_on_one_base_share_it() -> None:
    """Weights of two adapters and one base, not of three models."""
    parts = run_fake(LORA).parts
    alone = run_fake(replace(LORA, phase="bc", critic=None)).parts
    adapter = 2 * 16 * sum((128 + 128, 128 + 64, 128 + 64, 128 + 128, 3 * (128 + 320))) * 3
    heads = sum(one.parameters for one in critic_heads(64))
    body = (1000 + 514 + 1) * 64 + 2 * 64 + 64 * 65 + 2 * (12 * 64 * 64 + 9 * 64 + 4 * 64)
    assert parts["weights"] - alone["weights"] == adapter + 2 * 4 * (heads + body)
