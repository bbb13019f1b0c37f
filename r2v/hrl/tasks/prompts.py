"""Prompts of actor and guidance, through the tokenizer's own chat template.

    first answer     problem                                                    -> answer
    hint             problem, answer, "Give a hint."                            -> hint
    next answer      problem, answer, "Hint: ... Answer again."                 -> answer

and so on for any number of turns. Instructions for general models are in the system message; the user messages use only
the vocabulary of the bundled toy policy. Token ids end where the reply begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r2v.hrl.tasks.problems import Problem
from r2v.policy.chat_template import usable_tokenizer, with_stopped_clock

Round = tuple[str, str | None]
"""An answer and the hint to it; None without one."""

_ENDINGS = {
    "boxed": "Think step by step, then put the final answer in \\boxed{}.",
    "program": "Reply with Python code in one block between ```python and ```, and nothing that reads input.",
}
_MARKED = "Think briefly, then end with the final answer alone on a line after ####."
GUIDANCE_INSTRUCTIONS = (
    "You coach somebody who solves a problem. Read the problem and the latest answer, find where it may have gone "
    "wrong, and reply with one short hint: the step to do first, or what to check. Never say the final answer."
)


def instructions_for(checker: str) -> str:
    """Return the actor's instructions for answers that this checker can score: `boxed`, `program`, or any other, which
    is assumed to read the text after ####."""
    ending = _ENDINGS.get(checker, _MARKED)
    return f"Solve the problem. {ending} When you are given a hint, use it if it is right, and answer again."


def revision_request(hint: str | None) -> str:
    """Return the message that requests the next answer."""
    return "Answer again." if hint is None else f"Hint: {hint}\nAnswer again."


def hint_request(score: float | None) -> str:
    """Return the message that requests a hint. `score`: the answer's, if the guidance may see it."""
    return "Give a hint." if score is None else f"Score: {score:g}. Give a hint."


class Prompter:
    """Prompts through a tokenizer's chat template, which gets `enable_thinking`. `instructions`: the actor's. Raises
    UsageError for a tokenizer without a chat template or an end token."""

    def __init__(self, tokenizer: Any, instructions: str | None = None, *, enable_thinking: bool = False) -> None:
        self.tokenizer, self.instructions = tokenizer, instructions or instructions_for("numeric")
        self._enable_thinking = enable_thinking
        with usable_tokenizer(tokenizer):
            self._has_system = self._takes_system()

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """Return the prompt for an answer after these rounds of answer and hint."""
        return self._ids(self.instructions, self._messages(problem, rounds))

    def hint(
        self, problem: Problem, rounds: Sequence[Round], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """Return the prompt for a hint to `answer`. `score`: the answer's, if the guidance may see it."""
        turns = [*self._messages(problem, rounds), _turn("assistant", answer), _turn("user", hint_request(score))]
        return self._ids(GUIDANCE_INSTRUCTIONS, turns)

    @staticmethod
    def _messages(problem: Problem, rounds: Sequence[Round]) -> list[dict[str, str]]:
        turns = [_turn("user", problem.text)]
        for answer, hint in rounds:
            turns.append(_turn("assistant", answer))
            turns.append(_turn("user", revision_request(hint)))
        return turns

    def _ids(self, instructions: str, turns: list[dict[str, str]]) -> tuple[int, ...]:
        if self._has_system:
            turns = [_turn("system", instructions), *turns]
        else:
            turns = [_turn("user", f"{instructions}\n\n{turns[0]['content']}"), *turns[1:]]
        return tuple(self._rendered(turns))

    def _rendered(self, turns: list[dict[str, str]]) -> list[int]:
        template = with_stopped_clock(self.tokenizer.get_chat_template())
        encoded = self.tokenizer.apply_chat_template(
            turns,
            chat_template=template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=self._enable_thinking,
        )
        return [int(token) for token in encoded]

    def _takes_system(self) -> bool:
        """True if the template accepts a system message; Gemma's refuses it."""
        try:
            self._rendered([_turn("system", "a"), _turn("user", "b")])
        except Exception:  # a Jinja template may raise anything
            return False
        return True


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
