"""Lengths from worked solutions, where none are given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from r2v.config import HierarchicalConfig, ProblemsConfig
from r2v.config.hierarchical import UNKNOWN_TOKENS
from r2v.hrl.tasks.problems import Problem, read_problems
from r2v.hrl.training.problem_set import BUNDLED_TOKENS, with_lengths

FILE = HierarchicalConfig(problems=ProblemsConfig(path="gsm8k.jsonl"))


class Words:
    """A tokenizer of words."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * (len(text.split()) + add_special_tokens)


def solved(*words: int) -> list[Problem]:
    return [Problem(id=str(i), text="?", answer="1", solution="w " * count) for i, count in enumerate(words)]


def lengths(h: HierarchicalConfig, problems: list[Problem]) -> tuple[int | None, int | None]:
    made = with_lengths(h, problems, Words())
    return made.answer_tokens, made.hint_tokens


def test_an_answer_may_have_half_as_many_tokens_again_as_nearly_all_solutions() -> None:
    assert lengths(FILE, solved(*range(1, 101))) == (144, 48), "1.5 * 95 and a quarter, in steps of 16"
    assert lengths(FILE, solved(*[10] * 99, 5000)) == (16, 16), "one long solution does not decide"


def test_what_is_given_stays_and_what_is_unknown_is_said_in_the_configuration() -> None:
    assert lengths(replace(FILE, answer_tokens=100), solved(7)) == (100, 32)
    assert lengths(replace(FILE, answer_tokens=100, hint_tokens=5), []) == (100, 5)
    bare = [Problem(id="1", text="?", answer="1")]
    assert lengths(FILE, bare) == (UNKNOWN_TOKENS, UNKNOWN_TOKENS // 4)
    assert lengths(HierarchicalConfig(), bare) == BUNDLED_TOKENS
    assert (FILE.longest_answer, FILE.longest_hint) == (512, 128)
    assert replace(FILE, answer_tokens=2).longest_hint == 1


def test_a_worked_solution_is_kept_beside_its_answer_and_a_bare_answer_is_none(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1 + 1 = 2\n#### 2"}, {"problem": "b", "answer": "3"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [(one.answer, one.solution) for one in read_problems(tmp_path / "p.jsonl")] == [
        ("2", "1 + 1 = 2\n#### 2"),
        ("3", ""),
    ]
