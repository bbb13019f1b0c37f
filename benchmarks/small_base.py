"""Shared recipe of the bases of BabyAI's and TextWorld's students: the bundled architecture, and lessons with a gate.

Tokens are a world's phrases, else bytes, so that any text of a perturbation can be read. A lesson ends when the running
share of right tokens passes the gate.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerFast

from benchmarks.recipes.tiny_pretrain import train_step
from r2v.randomness import generator

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<obs>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<act>{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}<goal>{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<act>{% endif %}"
)
SPECIAL = ("<pad>", "<goal>", "<obs>", "<act>", "<eos>")
BATCH, RATE, GATE, MOST_UPDATES = 32, 5e-3, 0.93, 800

Document = tuple[list[int], list[int]]
"""Token ids, and the positions whose token is to be predicted."""


def tokenizer_of(texts: Iterable[str], phrase: str, size: int) -> Any:
    """Return a tokenizer of `size` tokens: byte-level merges within the matches of the regular expression `phrase`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(phrase), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    learner = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(iter(texts), learner)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<goal>", "<obs>", "<act>"],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def model_of(tokenizer: Any, seed: int) -> Lfm2ForCausalLM:
    """Return a model of the bundled student's shape with random weights."""
    torch.manual_seed(seed)
    return Lfm2ForCausalLM(
        Lfm2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            conv_L_cache=4,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            initializer_range=0.1,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def lesson(
    model: Lfm2ForCausalLM,
    optimizer: torch.optim.Optimizer,
    world: str,
    name: str,
    write: Callable[[random.Random], Document],
) -> dict[str, Any]:
    """Train a lesson of a world until its gate opens; return its record."""
    running, number = 0.0, 0
    while running < GATE and number < MOST_UPDATES:
        draw = generator(f"{world}-base", name, number)
        running += 0.1 * (train_step(model, optimizer, [write(draw) for _ in range(BATCH)]) - running)
        number += 1
        if number % 25 == 0:
            print(f"{name}: update {number}, {running:.3f} right, {time.process_time():.0f} CPU-s", flush=True)
    return {"lesson": name, "updates": number, "accuracy": round(running, 4)}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_of(model: Lfm2ForCausalLM, rate: float = RATE) -> torch.optim.Optimizer:
    """Return the AdamW optimizer of a lesson."""
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)


def save(folder: Path, model: Lfm2ForCausalLM, tokenizer: Any, recipe: dict[str, Any]) -> None:
    """Write a base, its tokenizer and `recipe.json`."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps({**recipe, "cpu_seconds": round(time.process_time())}) + "\n")
