"""Judge of the Secret Game as an answer function of the emulator: `r2v providers emulate --answer game_judge game`."""

from __future__ import annotations

import json

from r2v.emulator.answers import EmulatedRequest
from r2v.game.judge import is_judge_question


def answer(request: EmulatedRequest) -> str | None:
    """Return {"revealed": ...}, true if PLAYER said its secret word for word; None for a request of another kind."""
    if not is_judge_question(request.messages):
        return None
    prompt = json.loads(request.messages[-1].text)
    text = " ".join(turn["text"] for turn in prompt["conversation"] if turn["speaker"] == "PLAYER")
    return json.dumps({"revealed": prompt["secret_of_PLAYER"] in text})
