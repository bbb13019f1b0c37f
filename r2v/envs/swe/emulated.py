"""The expert of SWE-bench as an answer of the provider emulator: `r2v providers emulate --answer judge swebench`."""

from __future__ import annotations

from functools import cache

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.swe.expert import next_action
from r2v.envs.swe.home import BUNDLED_SET
from r2v.envs.swe.instances import Instance, load_instances


def answer(request: EmulatedRequest) -> str:
    """What the expert does next in a bundled instance. What is about none, such as the call before a run, is answered
    by a word."""
    for instance in _bundled():
        if any(instance.problem_statement in message.text for message in request.messages):
            return next_action(instance, request.messages)
    return "ok"


@cache
def _bundled() -> tuple[Instance, ...]:
    return tuple(load_instances(BUNDLED_SET, "test"))
