"""Small real models and a word tokenizer for the policy's tests: nothing pretrained, nothing downloaded."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(48)] + ["open", "close", "get", "done", "door", "key", "[elided]"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(template: str = TEMPLATE) -> Any:
    """Return a tokenizer with one token per word, written without spaces between special tokens."""
    special = ["<pad>", "<unk>", "<eos>", "<system>", "<user>", "<tool>", "<assistant>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=special[3:],
        chat_template=template,
    )


def model(vocabulary: int, seed: int = 0, dtype: torch.dtype = torch.float64, hidden: int = 32) -> Any:
    """Return a random short-convolution hybrid of two layers."""
    torch.manual_seed(seed)
    config = Lfm2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"],
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    return Lfm2ForCausalLM(config).to(dtype).eval()
