"""Measurements for tests: the package's own, else made in this process and cached."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import Any

from r2v.memory import store
from r2v.memory.measured.child import answer
from r2v.memory.measurement import MeasuredCase, MeasuredMemory, from_values
from r2v.memory.model_registry import ModelConfigValues
from r2v.memory.models import KnownModel, known_model

SMALL: ModelConfigValues = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 700,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
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


def measure(asked: MeasuredCase | ModelConfigValues) -> dict[str, Any]:
    """Return the answer of the measuring process."""
    return _answered(
        json.dumps([isinstance(asked, MeasuredCase), asdict(asked) if isinstance(asked, MeasuredCase) else asked])
    )


@cache
def _answered(text: str) -> dict[str, Any]:
    is_case, values = json.loads(text)
    return answer(MeasuredCase(**values) if is_case else values)


def lookup(case: MeasuredCase) -> MeasuredMemory:
    """Return a measurement, from a file of the package if it has one."""
    record = store.shipped().get(case.key)
    return from_values(measure(case) if record is None else record)


def model(values: str | ModelConfigValues) -> KnownModel:
    """Return a registered model by name, or one by its config.json."""
    if isinstance(values, str):
        return known_model(values)
    return KnownModel(name="model", values=values, sizes=store.ModelSizes(**measure(values)))
