"""What the candidates depend on: who plays on after them."""

from __future__ import annotations

import pytest

from r2v.config import load
from r2v.stages.generate_candidates import CandidatesSettings


@pytest.mark.parametrize(
    ("provider", "asked", "found"),
    [
        ("scripted", "auto", "teacher"),
        ("scripted", "slm", "slm"),
        ("openai", "auto", "slm"),
        ("openai", "teacher", "teacher"),
    ],
)
def test_a_paid_teacher_plays_on_only_where_it_is_named(provider: str, asked: str, found: str) -> None:
    overrides = [f"teacher.provider={provider}", f"candidates.continuation={asked}", "candidates.with_teacher=false"]
    settings = CandidatesSettings.of(load(None, overrides))
    assert (settings.candidates.continuation, settings.asks_teacher) == (found, found == "teacher")
