"""The first grep of the field's word leads to the file: in the head of its module, in its name or in the glossary."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.test_imports import REPOSITORY

MOST_HITS = 12
"""Most files that a reader looks through."""
WHERE = {
    "LoRA": "r2v/policy/load.py",
    "DPO loss": "r2v/policy/training/preference.py",
    "AUROC": "r2v/verifier/scores.py",
    "target network": "r2v/hrl/algorithm/critic.py",
    "rate limit": "r2v/llm/providers/dispatch/calls.py",
    "prompt cache": "r2v/rollout/bill.py",
    "bootstrap": "r2v/evaluation/measures/statistics.py",
    "OOM retry": "r2v/memory/on_device/retry_on_oom.py",
    "checkpoint": "r2v/storage/checkpoint.py",
    "advantage": "r2v/hrl/algorithm/advantage.py",
    "prompt injection": "r2v/perturb/categories/prompt_injection.py",
    "early stopping": "r2v/experiments/schedule/asha.py",
    "deduplication": "r2v/data/merge.py",
    "sentinel": "r2v/slurm/healing/sentinels.py",
    "lease": "r2v/storage/lease.py",
    "threshold": "r2v/router/thresholds.py",
    "budget": "r2v/llm/providers/spending/budget.py",
    "cascade": "r2v/router/escalation.py",
    "tool call": "r2v/wire/actions.py",
    "refusal": "r2v/llm/providers/dispatch/verdicts.py",
}


@cache
def heads() -> dict[str, str]:
    """Return module -> its name and the first paragraph of its docstring."""
    texts = {}
    for path in sorted((REPOSITORY / "r2v").rglob("*.py")):
        head = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        texts[path.relative_to(REPOSITORY).as_posix()] = f"{path.stem} {' '.join(head.split())}"
    return texts


def hits(term: str) -> set[str]:
    """Return the files found by a grep over names, heads of modules and the glossary's first column."""
    pattern = re.compile(term.replace(" ", "[ _-]?"), re.I)
    files = {path for path, text in heads().items() if pattern.search(text)}
    for row in (REPOSITORY / "docs" / "glossary.md").read_text().splitlines():
        first, _, rest = row.lstrip("| ").partition("|")
        if pattern.search(first):
            files |= set(re.findall(r"`(r2v/[\w/]+\.py)`", rest))
    return files


@pytest.mark.parametrize("term", WHERE)
def test_the_fields_word_leads_to_its_file(term: str) -> None:
    files = hits(term)
    assert WHERE[term] in files and len(files) <= MOST_HITS, sorted(files)
