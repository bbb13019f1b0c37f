"""Tool error: a call returns an error without any effect; a retry succeeds.

The severity is the probability that the failure lasts for a second call. In the mode explicit_permanent a tool that
failed once fails until the end with the same error; other tools work.
"""

from __future__ import annotations

import json

from r2v.perturb.category import Category, Change, Scene

ERRORS = ("http 500", "http 502", "http 503", "http 429", "connection reset", "dns failure")


def error_line(error: str) -> str:
    """Return the observation of a failed call."""
    return json.dumps({"error": error}, separators=(",", ":"))


def _alter(scene: Scene) -> Change:
    error = scene.choice(ERRORS, "error")
    return Change(text=error_line(error), params={"error": error})


CATEGORY = Category(kind="tool_call", group="tool_flakiness", mode="explicit_transient", preserving=False, alter=_alter)
