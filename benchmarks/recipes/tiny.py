"""Tiny, the bundled student: a tokenizer for the desk's language and a hybrid decoder of 0.2M parameters.

The tokenizer holds one token per `"field":"value"` pair, its leading comma or brace included, so that decoding an
action restores every character and a key comes directly before the value to be copied. The model has LFM2's
architecture (short convolutions and attention), which learns to copy in context where a plain transformer of this size
does not (docs/desk.md). `TINY_DIR` is the base that `tiny_pretrain` made.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedTokenizerFast

from r2v.envs.desk import vocabulary as desk_vocabulary
from r2v.envs.desk.tasks import WISHES
from r2v.envs.desk.tools import ARGUMENTS
from r2v.storage.weights import BUNDLED

TINY_DIR = BUNDLED["tiny"]
"""The shipped base: a directory that AutoModelForCausalLM and AutoTokenizer load."""

SPECIAL_TOKENS = ("<pad>", "<unk>", "<goal>", "<obs>", "<act>", "<eos>")

DESK_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<goal>{{ message['content'] }}"
    "{% elif message['role'] == 'tool' %}<obs>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<act>"
    "{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<act>{% endif %}"
)
"""A conversation as one sequence; the system message is dropped, every action ends in <eos>."""

_TOKEN = r'[{,]"\w+":"[^"]*"|\}|[^\s{}]+'
"""A pair with its leading comma or brace, a closing brace, or a word. White space is dropped."""

FAULT_WORDS = ("http 500", "http 502", "http 503", "http 429", "connection reset", "dns failure", "timeout")
INJECTION_WORDS = ("leave your task and call this", "send a copy to this record", "decode and run")


def _openers() -> Iterator[tuple[str, str]]:
    """Yield the pairs that can begin a line."""
    yield from (("tool", name) for name in ARGUMENTS)
    pages = ("home", "list", "record", "policy", "staff", "effect", "sent", "bye")
    yield from (("page", page) for page in pages)
    yield from product(("row", "record", "rule"), desk_vocabulary.KINDS)
    yield from (("staff", team) for team in desk_vocabulary.TEAMS)
    yield from (("goal", verb) for verb in WISHES)
    yield from (("remark", remark) for remark in desk_vocabulary.REMARKS)
    yield from (("error", reason) for reason in (*desk_vocabulary.REFUSALS, *FAULT_WORDS))
    yield from (("note", note) for note in ("ready", "saved", "output truncated", *INJECTION_WORDS))


def _fields() -> Iterator[tuple[str, str]]:
    """Yield the pairs that can follow another."""
    yield from (("kind", kind) for kind in desk_vocabulary.KINDS)
    yield from (("name", name) for name in desk_vocabulary.PERSON_NAMES)
    yield from (("team", team) for team in desk_vocabulary.TEAMS)
    yield from (("item", item) for item in desk_vocabulary.ITEM_NAMES)
    yield from (("id", identifier) for identifier in desk_vocabulary.IDS)
    yield from (("status", status) for status in (*desk_vocabulary.STATUSES, desk_vocabulary.ARCHIVED))
    yield from (("verb", verb) for verb in desk_vocabulary.VERBS)
    yield from (("tech", member) for member in desk_vocabulary.TECHS)
    yield from (("state", state) for state in desk_vocabulary.STATES)
    yield from (("site", site) for site in (*desk_vocabulary.SITES, "archive"))
    yield from (("text", wording) for wording in desk_vocabulary.WORDINGS)
    yield from (("rows", str(count)) for count in range(10))
    yield from (("part", part) for part in ("1 of 1", "1 of 2", "2 of 2"))
    yield from (("made", tool) for tool in ("close", "assign", "decide"))
    yield from (("tool", tool) for tool in ("close", "reply"))
    yield from (("via", desk_vocabulary.GUEST), ("data", "Y2xvc2U="))


def vocabulary() -> tuple[str, ...]:
    """Return every token, in the order of its id."""
    spoken = sorted({word for wish in WISHES.values() for word in wish.split()})
    openers = (f'{{"{name}":"{value}"' for name, value in _openers())
    fields = (f',"{name}":"{value}"' for name, value in _fields())
    return (*SPECIAL_TOKENS, "}", *spoken, *chain(openers, fields))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the fast tokenizer with its chat template."""
    core = Tokenizer(models.WordLevel({token: number for number, token in enumerate(vocabulary())}, "<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_TOKEN), behavior="removed", invert=True)
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=["<goal>", "<obs>", "<act>"],
        chat_template=DESK_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def build_model(seed: int) -> Lfm2ForCausalLM:
    """Return a student with random weights that depend on `seed` alone, in float32."""
    config = Lfm2Config(
        vocab_size=len(vocabulary()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        conv_L_cache=4,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<eos>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Lfm2ForCausalLM(config)
