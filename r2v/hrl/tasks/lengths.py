"""Lengths of answers and hints from the data, where the configuration gives none.

A model that reasons needs about as many tokens as the file's own worked solutions: an answer may have half as many
again as the longest of 95 % of them, a hint a quarter of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from r2v.config import HierarchicalConfig
from r2v.config.hierarchical import BUNDLED_PROBLEMS, UNKNOWN_TOKENS
from r2v.hrl.tasks.problems import Problem

BUNDLED_TOKENS = (16, 8)
"""Answers and hints of the bundled word problems."""
_SAMPLE = 500
_STEP = 16


def with_lengths(h: HierarchicalConfig, problems: Sequence[Problem], tokenizer: Any) -> HierarchicalConfig:
    """The configuration with `answer_tokens` and `hint_tokens`: its own, or from the first 500 problems' solutions. A
    file of bare answers says nothing: then it is `UNKNOWN_TOKENS`."""
    answer, hint = _lengths(h, problems, tokenizer)
    return replace(h, answer_tokens=h.answer_tokens or answer, hint_tokens=h.hint_tokens or hint)


def _lengths(h: HierarchicalConfig, problems: Sequence[Problem], tokenizer: Any) -> tuple[int, int]:
    if h.problems.path == BUNDLED_PROBLEMS:
        return BUNDLED_TOKENS
    answer = h.answer_tokens or _of_solutions([one.solution for one in problems[:_SAMPLE] if one.solution], tokenizer)
    return answer, _rounded(answer / 4)


def _of_solutions(solutions: Sequence[str], tokenizer: Any) -> int:
    counts = sorted(len(tokenizer.encode(solution, add_special_tokens=False)) for solution in solutions)
    return _rounded(1.5 * counts[math.ceil(0.95 * len(counts)) - 1]) if counts else UNKNOWN_TOKENS


def _rounded(tokens: float) -> int:
    return _STEP * math.ceil(tokens / _STEP)
