"""Emulated judge: answers of the provider emulator, `r2v providers emulate --answer judge desk`."""

from __future__ import annotations

import json

from r2v.emulator.answers import EmulatedRequest
from r2v.randomness import uniform
from r2v.verifier.judge import is_question


def answer(request: EmulatedRequest) -> str | None:
    """Return a score from 0 to 10 that depends on the proposed action alone; None for other requests."""
    if not is_question(request.messages):
        return None
    action = json.loads(request.messages[-1].text)["proposed_action"]
    return json.dumps({"score": int(11 * uniform("emulated judge", str(action)))})
