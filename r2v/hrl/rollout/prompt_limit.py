"""The prompt limit: a prompt that is too long is made again with earlier answers and hints cut.

Of every earlier text only its end is kept, where the final answer stands: as much of each as fits. One long answer
thus costs a part of itself, and never a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from r2v.hrl.types import TokenIds

PromptOf = Callable[[Sequence[str]], TokenIds]
"""The prompt with these earlier texts in it."""


def limited(make: PromptOf, texts: Sequence[str], limit: int | None) -> tuple[TokenIds, bool]:
    """`make(texts)` with at most `limit` tokens (None: any number), and whether something was cut for it.

    Where the rest alone is too long, the prompt's own end is kept.
    """
    whole = make(texts)
    if limit is None or len(whole) <= limit:
        return whole, False
    low, high, best = 0, max(map(len, texts), default=0), make([""] * len(texts))
    while low < high:  # the most characters of each text with which it fits
        kept = (low + high + 1) // 2
        shorter = make([text[-kept:] for text in texts])
        if len(shorter) <= limit:
            low, best = kept, shorter
        else:
            high = kept - 1
    return best[-limit:], True
