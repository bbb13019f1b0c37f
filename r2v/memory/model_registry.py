"""Model registry: the config.json of known models, reduced to the keys that decide their memory.

With these `r2v plan` needs no network. Any other model is planned from a directory with its config.json, or from the
hub's cache after a download. `models.json` has one entry per shape, with the names of its models. Source: each model's
own config.json on the hub; for models added in version 0.3 the copy in litgpt (github.com/Lightning-AI/litgpt, module
litgpt.config, commit 26857050), for Mistral-Nemo that in kevinstephano/thunder_model_blocks. Tied embeddings follow
from the published numbers of parameters, which the tests check for every entry.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

ModelConfigValues = dict[str, Any]

MODEL_CONFIGS: dict[str, ModelConfigValues] = {
    name: shape["config"]
    for shape in json.loads((resources.files("r2v.memory") / "models.json").read_text())
    for name in shape["names"]
}
"""Hub name -> configuration. `lookup` accepts other names of the same shape too."""
KNOWN_MODELS = (
    "Llama-3, 3.1, 3.2 and 3.3, Qwen2.5, Qwen3 (dense, 30B-A3B and 235B-A22B), Gemma 1 to 3, Phi-3 mini, 3.5 mini and "
    "4, Mistral 7B, Nemo and Large, Mixtral, SmolLM2, LFM2, roberta"
)
"""Models in `MODEL_CONFIGS`, for messages."""
_SAME_SHAPE = frozenset(
    ("meta", "instruct", "it", "pt", "base", "hf", "chat", "thinking", "2507", "unsloth", "bnb", "4bit")
)
"""Words in a name that describe tuning or storage, not the shape."""


def lookup(name: str) -> ModelConfigValues | None:
    """Return the configuration of a model by its hub name or the last part of it, ignoring case and the words of
    `_SAME_SHAPE`, or None."""
    words = _words(name)
    return next((values for full, values in MODEL_CONFIGS.items() if _words(full) == words), None)


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in name.rpartition("/")[2].lower().split("-") if word not in _SAME_SHAPE)
