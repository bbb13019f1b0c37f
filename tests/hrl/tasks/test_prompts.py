"""Prompts of the roles, under several chat templates."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.errors import UsageError
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import GUIDANCE_INSTRUCTIONS, Prompter, instructions_for
from tests import tiny_models

ACTOR_INSTRUCTIONS = instructions_for("numeric")

PROBLEM = Problem(id="p", text="open w1", answer="w2")
MARKED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + MARKED


def tokenizer(template: str) -> Any:
    """Return one of the tests' tokenizers, extended by the words of the prompts."""
    made = tiny_models.tokenizer(template)
    made.add_tokens(
        sorted(
            {
                *ACTOR_INSTRUCTIONS.split(),
                *GUIDANCE_INSTRUCTIONS.split(),
                "Hint:",
                "Answer",
                "again.",
                "Give",
                "a",
                "hint.",
                "Score:",
                "0.5.",
            }
        )
    )
    return made


def shown(template: str, ids: tuple[int, ...]) -> str:
    return str(tokenizer(template).decode(list(ids), skip_special_tokens=False)).replace(" ", "")


def packed(text: str) -> str:
    return "".join(text.split())


def test_a_first_answer_is_asked_for_with_the_problem_alone() -> None:
    assert shown(MARKED, Prompter(tokenizer(MARKED)).answer(PROBLEM)) == (
        f"<system>{packed(ACTOR_INSTRUCTIONS)}<user>openw1<assistant>"
    )


def test_the_template_is_told_whether_to_think() -> None:
    heeding = MARKED + "{% if enable_thinking %}w3{% else %}w4{% endif %}"
    for thinking, word in ((True, "w3"), (False, "w4")):
        prompter = Prompter(tokenizer(heeding), enable_thinking=thinking)
        assert shown(heeding, prompter.answer(PROBLEM)).endswith(f"<assistant>{word}")


def test_later_answers_see_all_answers_and_hints_before_them() -> None:
    rounds = [("w3", "w4 key"), ("w5", None)]
    assert shown(MARKED, Prompter(tokenizer(MARKED)).answer(PROBLEM, rounds)) == (
        f"<system>{packed(ACTOR_INSTRUCTIONS)}<user>openw1<assistant>w3<eos><user>Hint:w4keyAnsweragain."
        "<assistant>w5<eos><user>Answeragain.<assistant>"
    )


def test_a_hint_is_asked_for_with_the_answer_and_never_with_what_is_right() -> None:
    prompter = Prompter(tokenizer(MARKED))
    begun = f"<system>{packed(GUIDANCE_INSTRUCTIONS)}<user>openw1<assistant>w3<eos>"
    assert shown(MARKED, prompter.hint(PROBLEM, [], "w3")) == begun + "<user>Giveahint.<assistant>"
    assert shown(MARKED, prompter.hint(PROBLEM, [], "w3", 0.5)) == begun + "<user>Score:0.5.Giveahint.<assistant>"
    later = shown(MARKED, prompter.hint(PROBLEM, [("w3", "key")], "w5"))
    assert later == begun + "<user>Hint:keyAnsweragain.<assistant>w5<eos><user>Giveahint.<assistant>"
    assert "w2" not in later


def test_a_template_without_a_system_message_gets_the_rules_with_the_problem() -> None:
    assert shown(NO_SYSTEM, Prompter(tokenizer(NO_SYSTEM)).answer(PROBLEM)) == (
        f"<user>{packed(ACTOR_INSTRUCTIONS)}openw1<assistant>"
    )


def test_a_tokenizer_without_a_template_or_an_end_is_refused() -> None:
    bare = tiny_models.tokenizer()
    bare.chat_template = None
    with pytest.raises(UsageError, match="no chat template"):
        Prompter(bare)


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day() -> None:
    dated = "{{ strftime_now('w%d') }}" + tiny_models.TEMPLATE
    prompter = Prompter(tiny_models.tokenizer(dated))
    assert prompter.tokenizer.decode(prompter.answer(PROBLEM)).startswith("w26")


def test_each_checker_has_a_prompt_that_it_can_score() -> None:
    """An answer that follows the prompt is right: in a box, after ####, or as a program."""
    prompts = {name: instructions_for(name) for name in ("numeric", "exact", "boxed", "program", "my.checks:close")}
    assert all("####" in prompts[name] for name in ("numeric", "exact", "my.checks:close"))
    assert "\\boxed{}" in prompts["boxed"] and "####" not in prompts["boxed"] and "```python" in prompts["program"]
    own = Prompter(tokenizer(MARKED), "Say it in French.")
    assert own.instructions == "Say it in French." and Prompter(tokenizer(MARKED)).instructions == prompts["numeric"]
