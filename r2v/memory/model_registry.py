"""Model registry: the config.json of known models, cut to what decides their memory.

With these `r2v plan` needs no network. Any other model is planned from a directory with its config.json, or from the
hub's cache once it was downloaded. `models.json` has a line for each shape, with the names of the models that have it.
Source: each model's own config.json on the hub; of those that were added in version 0.3 as litgpt repeats it
(github.com/Lightning-AI/litgpt, module litgpt.config, commit 26857050), Mistral-Nemo as
kevinstephano/thunder_model_blocks does. Which of them tie their embeddings follows from their published numbers of
parameters, which the tests hold every entry to.
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
"""Hub name to configuration. `lookup` takes other names of the same weights' shape too."""
KNOWN_MODELS = (
    "Llama-3, 3.1, 3.2 and 3.3, Qwen2.5, Qwen3 (dense, 30B-A3B and 235B-A22B), Gemma 1 to 3, Phi-3 mini, 3.5 mini and "
    "4, Mistral 7B, Nemo and Large, Mixtral, SmolLM2, LFM2, roberta"
)
"""What `MODEL_CONFIGS` holds, in a sentence."""
_SAME_SHAPE = frozenset(
    ("meta", "instruct", "it", "pt", "base", "hf", "chat", "thinking", "2507", "unsloth", "bnb", "4bit")
)
"""Words in a name that say how a model was tuned or stored, and not its shape."""


def lookup(name: str) -> ModelConfigValues | None:
    """The configuration of a model by its hub name or the last part of it, in any case, also of its instruction-tuned
    and other versions of one shape; None where it is not in the table."""
    words = _words(name)
    return next((values for full, values in MODEL_CONFIGS.items() if _words(full) == words), None)


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in name.rpartition("/")[2].lower().split("-") if word not in _SAME_SHAPE)
