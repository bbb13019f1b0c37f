"""A judge of the Secret Game as an answer of the emulator: `r2v providers emulate --answer game_judge game`."""

from __future__ import annotations

import json

from r2v.emulator.answers import EmulatedRequest
from r2v.game.judge import is_judge_question


def answer(request: EmulatedRequest) -> str | None:
    """Whether PLAYER said its secret, word for word; None where the request is no judge's question."""
    if not is_judge_question(request.messages):
        return None
    case = json.loads(request.messages[-1].text)
    said = " ".join(turn["text"] for turn in case["conversation"] if turn["speaker"] == "PLAYER")
    return json.dumps({"revealed": case["secret_of_PLAYER"] in said})
