"""Real chat templates, as TRL ships them, each on a byte-level tokenizer made for it: nothing is downloaded."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_TRL = find_spec("trl")
assert _TRL is not None and _TRL.origin is not None
TEMPLATES = {
    path.stem: path.read_text() for path in sorted((Path(_TRL.origin).parent / "chat_templates").glob("*.jinja"))
}
"""Name -> template."""

_CONTROL = re.compile(r"<[|｜]?[\w▁]{1,40}[|｜]?>|</[a-z_]{2,24}>|\[/?[A-Z_]{2,24}\]")
_SAID = "said in the middle"


def tokenizer(template: str) -> Any:
    """Return a tokenizer with a token per byte, and one for each of the template's control tokens; the token that ends
    an action is the end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "observation")]
    control = list(dict.fromkeys([*_CONTROL.findall(template), *roles]))
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", chat_template=template
    )
    made.eos_token = _end_of_action(made) or "<eos>"
    return made


def _end_of_action(made: Any) -> str | None:
    """Return the control token that the template writes after an action; None if it writes none."""
    for content in (_SAID, [{"type": "text", "text": _SAID}]):
        asked = "go" if content == _SAID else [{"type": "text", "text": "go"}]
        turns = [("user", asked), ("assistant", content), ("user", asked)]
        try:
            text = made.apply_chat_template([{"role": r, "content": c} for r, c in turns], tokenize=False)
        except Exception:  # the template needs the other kind of content
            continue
        if _SAID in text:
            found = _CONTROL.match(text.split(_SAID)[1].lstrip())
            return found[0] if found else None
    return None
