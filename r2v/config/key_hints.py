"""Hints for an unknown configuration key: the key that other tools call by this name, else the nearest spelling."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from r2v.errors import nearest

SYNONYMS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("lr",),
    "epochs": ("num_epochs",),
    "n_epochs": ("num_epochs",),
    "num_train_epochs": ("num_epochs",),
    "batch": ("batch_size",),
    "bs": ("batch_size",),
    "per_device_train_batch_size": ("batch_size",),
    "train_batch_size": ("batch_size",),
    "grad_accum": ("gradient_accumulation_steps",),
    "gradient_accumulation": ("gradient_accumulation_steps",),
    "gradient_clipping": ("grad_clip",),
    "max_grad_norm": ("grad_clip",),
    "wd": ("weight_decay",),
    "warmup": ("warmup_ratio",),
    "warmup_steps": ("warmup_ratio",),
    "checkpoint_steps": ("save_steps",),
    "gpus": ("ranks",),
    "num_gpus": ("ranks",),
    "base_model": ("model_name",),
    "model_name_or_path": ("model_name",),
    "model_path": ("model_name",),
    "lora_rank": ("lora_r",),
    "rank": ("lora_r",),
    "load_4bit": ("load_in_4bit",),
    "quantization": ("load_in_4bit",),
    "quantize": ("load_in_4bit",),
    "context_length": ("max_seq_len", "context"),
    "max_length": ("max_seq_len",),
    "max_seq_length": ("max_seq_len",),
    "max_tokens": ("max_new_tokens", "max_seq_len"),
    "max_completion_tokens": ("max_tokens", "max_new_tokens"),
    "max_output_tokens": ("max_tokens", "max_new_tokens"),
    "n_samples": ("num_samples", "num_candidates"),
    "temp": ("temperature",),
    "api_base": ("base_url",),
    "endpoint": ("base_url",),
    "url": ("base_url",),
    "api_key": ("api_key_env",),
    "max_cost": ("max_usd",),
    "out_dir": ("prefix",),
    "output": ("prefix",),
    "output_dir": ("prefix",),
    "results_dir": ("prefix",),
    "random_seed": ("seed",),
    "num_workers": ("workers",),
}
"""Last part of a key as other tools call it -> the last part of ours, the likeliest first."""

_MOST = 3
"""Keys that a hint names."""


def key_hint(key: str, keys: Collection[str]) -> str:
    """Return "did you mean ...?" for a dotted key that is none of `keys`, or a few of them where none is near.

    >>> key_hint("training.learning_rate", ["training", "training.lr", "training.warmup_ratio"])
    'did you mean training.lr?'
    """
    stem, _, name = key.rpartition(".")
    stem = _section(stem, keys)
    names = (name, *SYNONYMS.get(name.lower(), ()))
    beside = {other.removeprefix(stem): other for other in keys if other.startswith(stem)}
    if same_section := [beside[name] for name in names if name in beside]:
        return f"did you mean {same_section[0]}?"
    if not difflib.get_close_matches(name, [other for other in beside if "." not in other], n=1, cutoff=0.8):
        matching = [other for name in names for other in keys if other.rpartition(".")[2] == name]
        least = min((other.count(".") for other in matching), default=0)
        if shallowest := [other for other in matching if other.count(".") == least]:
            return f"did you mean {' or '.join(shallowest[:_MOST])}?"
    return nearest(key, keys)


def _section(stem: str, keys: Collection[str]) -> str:
    """The section that a key names, its spelling put right, with the dot behind it; "" for the top level."""
    if not stem:
        return ""
    sections = sorted({other.rpartition(".")[0] for other in keys} - {""})
    return (*difflib.get_close_matches(stem, sections, n=1, cutoff=0.7), stem)[0] + "."
