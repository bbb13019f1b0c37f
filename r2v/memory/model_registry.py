"""Model registry: the config.json of known models, cut to what decides their memory.

With these `r2v plan` needs no network. Any other model is planned from a directory with its config.json, or from the
hub's cache once it was downloaded. Source: each model's own config.json on the hub.
"""

from __future__ import annotations

from typing import Any

ModelConfigValues = dict[str, Any]


def _decoder(
    kind: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    inner: int,
    vocab: int,
    *,
    tied: bool = False,
    **more: Any,
) -> ModelConfigValues:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **more,
    }


def _lfm2(hidden: int, inner: int, heads: int, *, attention: tuple[int, ...]) -> ModelConfigValues:
    kinds = ["full_attention" if layer in attention else "conv" for layer in range(16)]
    return _decoder(
        "lfm2",
        hidden,
        16,
        heads,
        8,
        inner,
        65536,
        tied=True,
        layer_types=kinds,
        conv_L_cache=3,
        conv_bias=False,
        block_auto_adjust_ff_dim=True,
        block_ffn_dim_multiplier=1.0,
        block_multiple_of=256,
    )


def _roberta(hidden: int, layers: int, heads: int) -> ModelConfigValues:
    return {
        "model_type": "roberta",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "dtype": "float32",
    }


MODEL_CONFIGS: dict[str, ModelConfigValues] = {
    "meta-llama/Llama-3.2-1B": _decoder("llama", 2048, 16, 32, 8, 8192, 128256, tied=True, head_dim=64),
    "meta-llama/Llama-3.2-3B": _decoder("llama", 3072, 28, 24, 8, 8192, 128256, tied=True, head_dim=128),
    "meta-llama/Llama-3.1-8B": _decoder("llama", 4096, 32, 32, 8, 14336, 128256),
    "meta-llama/Llama-3.1-70B": _decoder("llama", 8192, 80, 64, 8, 28672, 128256),
    "Qwen/Qwen2.5-0.5B": _decoder("qwen2", 896, 24, 14, 2, 4864, 151936, tied=True),
    "Qwen/Qwen2.5-1.5B": _decoder("qwen2", 1536, 28, 12, 2, 8960, 151936, tied=True),
    "Qwen/Qwen2.5-3B": _decoder("qwen2", 2048, 36, 16, 2, 11008, 151936, tied=True),
    "Qwen/Qwen2.5-7B": _decoder("qwen2", 3584, 28, 28, 4, 18944, 152064),
    "Qwen/Qwen3-0.6B": _decoder("qwen3", 1024, 28, 16, 8, 3072, 151936, tied=True, head_dim=128),
    "Qwen/Qwen3-1.7B": _decoder("qwen3", 2048, 28, 16, 8, 6144, 151936, tied=True, head_dim=128),
    "Qwen/Qwen3-4B": _decoder("qwen3", 2560, 36, 32, 8, 9728, 151936, tied=True, head_dim=128),
    "Qwen/Qwen3-8B": _decoder("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128),
    "mistralai/Mistral-7B-v0.3": _decoder("mistral", 4096, 32, 32, 8, 14336, 32768),
    "LiquidAI/LFM2-350M": _lfm2(1024, 6656, 16, attention=(2, 5, 8, 10, 12, 14)),
    "LiquidAI/LFM2-700M": _lfm2(1536, 10240, 24, attention=(2, 5, 8, 10, 12, 14)),
    "LiquidAI/LFM2-1.2B": _lfm2(2048, 12288, 32, attention=(2, 5, 8, 10, 12, 14)),
    "FacebookAI/roberta-base": _roberta(768, 12, 12),
    "FacebookAI/roberta-large": _roberta(1024, 24, 16),
}
"""Hub name to configuration. `lookup` takes the last part of the name alone too."""


def lookup(name: str) -> ModelConfigValues | None:
    """The configuration of a model by its hub name or the last part of it, in any case, with or without -Instruct; None
    where it is not in the table."""
    short = name.rpartition("/")[2].lower().removesuffix("-instruct")
    return next((values for full, values in MODEL_CONFIGS.items() if full.rpartition("/")[2].lower() == short), None)
