"""Small real models and a language in which one word decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from r2v.config import Phase
from r2v.randomness import generator
from r2v.verifier.labels import VerifierExample
from r2v.wire.message import Message

VOCABULARY = 64
GOOD_WORD = 7


def backbone(family: str = "lfm2", seed: int = 0) -> Any:
    """Return a random decoder of a few thousand parameters: short convolutions and attention, or attention alone."""
    from transformers import Lfm2Config, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    layers = ["conv", "full_attention"]
    return Lfm2ForCausalLM(Lfm2Config(**shape, layer_types=layers, initializer_range=0.1))


def encode(messages: Sequence[Message], action: str) -> list[int]:
    """Return the numbers in the text as tokens."""
    return [int(word) for text in (*(m.content for m in messages), action) for word in text.split()]


def example(number: int, target: float, action: list[int], split: str = "train") -> VerifierExample:
    """Return an example of the toy language: a context of random words, then the action's."""
    draw = generator("toy-context", number)
    words = [draw.randrange(10, VOCABULARY) for _ in range(draw.randint(2, 8))]
    return VerifierExample(
        state_id=f"t{number // 4}/s1#{number % 4 // 2}",
        task_id=f"t{number // 4}",
        split=split,
        action=" ".join(map(str, action)),
        messages=(Message(role="user", content=" ".join(map(str, words))),),
        target=target,
        label_source="executed",
    )


def separable(numbers: range) -> list[VerifierExample]:
    """Return examples that are good exactly where the action holds the good word."""
    examples = []
    for number in numbers:
        draw = generator("toy-action", number)
        action = [draw.randrange(10, VOCABULARY) for _ in range(4)]
        if good := draw.random() < 0.5:
            action[draw.randrange(4)] = GOOD_WORD
        examples.append(example(number, float(good), action))
    return examples


def shuffled(numbers: range) -> list[VerifierExample]:
    """Return examples whose labels do not depend on the text."""
    examples = separable(numbers)
    return [
        example(n, float(generator("toy-label", n).random() < 0.5), [int(w) for w in e.action.split()])
        for n, e in zip(numbers, examples, strict=True)
    ]


def phase(**changes: Any) -> Phase:
    """Return training settings with these changes."""
    knobs: dict[str, Any] = {
        "num_epochs": 3,
        "lr": 5e-3,
        "batch_size": 32,
        "gradient_accumulation_steps": 1,
        "weight_decay": 0.0,
        "warmup_ratio": 0.05,
        "grad_clip": 1.0,
        "save_steps": 1_000,
        "max_examples": None,
    }
    return Phase(**{**knobs, **changes})
