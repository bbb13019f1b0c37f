"""Answers of the emulated teacher and of both judges to WebArena's tasks: the teacher knows the official answers."""

from __future__ import annotations

import json

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.webarena.home import child_package
from r2v.envs.webarena.tasks import official_tasks, public


def answer(request: EmulatedRequest) -> str:
    """Return an official judgement, or the call that solves a task."""
    asked = request.messages[-1].content
    if "Conclude the judgement by correct/incorrect" in asked:
        reference, said = (
            asked.partition(f"{name}: ")[2].partition("\n")[0] for name in ("reference answer", "student answer")
        )
        return "correct" if reference.lower() in said.lower() else "incorrect"
    if "reported unachievable reason" in asked:
        return "different"
    for record in official_tasks(child_package("webarena")).values():
        if any(message.content.startswith(record["intent"]) for message in request.messages):
            return _right_call(record["eval"])
    return "ok"


def _right_call(rules: dict) -> str:  # type: ignore[type-arg]
    if rules["reference_answers"] is None:
        return json.dumps({"tool": "goto", "url": public(rules["reference_url"].partition(" |OR| ")[0])})
    parts = []
    for value in rules["reference_answers"].values():
        parts += value if isinstance(value, list) else [value]
    return json.dumps({"tool": "send_msg_to_user", "text": "; ".join(parts)})
