"""What the two roles are shown, through a tokenizer's own chat template.

    first answer     problem                                                    -> answer
    hint             problem, answer, "Give a hint."                            -> hint
    next answer      problem, answer, "Hint: ... Answer again."                 -> answer

and so on for any number of turns. What has to be explained to a model that was not made for this stands in the system
message; what the user says is so short that the bundled pupil knows every word of it. Ids end where the reply begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from r2v.errors import UsageError
from r2v.hrl.tasks.problems import Problem

Round = tuple[str, str | None]
"""An answer and the hint that was given to it; None where nobody gave one."""

SOLVE = (
    "Solve the problem. Think briefly, then end with the final answer alone on a line after ####. When you are "
    "given a hint, use it if it is right, and answer again."
)
COACH = (
    "You coach somebody who solves a problem. Read the problem and the latest answer, find where it may have gone "
    "wrong, and reply with one short hint: the step to do first, or what to check. Never say the final answer."
)


def again(hint: str | None) -> str:
    """What asks for the next answer."""
    return "Answer again." if hint is None else f"Hint: {hint}\nAnswer again."


def wanted(score: float | None) -> str:
    """What asks for a hint, to an answer that earned `score` where that may be known."""
    return "Give a hint." if score is None else f"Score: {score:g}. Give a hint."


class Prompter:
    """Prompts of a tokenizer. Raises UsageError where it has no chat template or no end token."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template or tokenizer.eos_token_id is None:
            raise UsageError(
                f"{tokenizer.name_or_path or 'tokenizer'}: has no chat template or no end token; "
                "set them in its tokenizer_config.json, or name a model that was made for conversations"
            )
        self.tokenizer = tokenizer
        self._has_system = self._takes_system()

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """Ids that ask for an answer, after these rounds of answer and hint."""
        return self._ids(SOLVE, self._told(problem, rounds))

    def hint(
        self, problem: Problem, rounds: Sequence[Round], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """Ids that ask for a hint to `answer`, which earned `score` where that may be known."""
        turns = [*self._told(problem, rounds), _turn("assistant", answer), _turn("user", wanted(score))]
        return self._ids(COACH, turns)

    def text(self, ids: Sequence[int]) -> str:
        """Ids as the text that a reader with another vocabulary is given."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @staticmethod
    def _told(problem: Problem, rounds: Sequence[Round]) -> list[dict[str, str]]:
        turns = [_turn("user", problem.text)]
        for answer, hint in rounds:
            turns.append(_turn("assistant", answer))
            turns.append(_turn("user", again(hint)))
        return turns

    def _ids(self, rules: str, turns: list[dict[str, str]]) -> tuple[int, ...]:
        if self._has_system:
            turns = [_turn("system", rules), *turns]
        else:
            turns = [_turn("user", f"{rules}\n\n{turns[0]['content']}"), *turns[1:]]
        return tuple(self._rendered(turns))

    def _rendered(self, turns: list[dict[str, str]]) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return [int(token) for token in encoded]

    def _takes_system(self) -> bool:
        """Whether the template knows a system message; Gemma's, for one, refuses it."""
        try:
            self._rendered([_turn("system", "a"), _turn("user", "b")])
        except Exception:  # templates raise what they like
            return False
        return True


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
