"""SWE-bench's expert as an answer function of the emulator: `r2v providers emulate --answer judge swebench`."""

from __future__ import annotations

from functools import cache

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.swe.expert import next_action
from r2v.envs.swe.home import BUNDLED_SET
from r2v.envs.swe.instances import Instance, load_instances


def answer(request: EmulatedRequest) -> str:
    """Return the expert's next action in a bundled instance; "ok" for any other request, such as the probe before a
    run."""
    for instance in _bundled():
        if any(instance.problem_statement in message.text for message in request.messages):
            return next_action(instance, request.messages)
    return "ok"


@cache
def _bundled() -> tuple[Instance, ...]:
    return tuple(load_instances(BUNDLED_SET, "test"))
