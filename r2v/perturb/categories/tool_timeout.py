"""Tool timeout: a call that never reaches the world returns an error after TIMEOUT_SECONDS of simulated time. It lasts
as a tool_error does."""

from __future__ import annotations

from r2v.perturb.categories.tool_error import error_line
from r2v.perturb.category import Category, Change, Scene

TIMEOUT_SECONDS = 30.0


def _alter(scene: Scene) -> Change:
    return Change(text=error_line("timeout"), seconds=TIMEOUT_SECONDS, params={"seconds": TIMEOUT_SECONDS})


CATEGORY = Category(kind="tool_call", group="tool_flakiness", mode="explicit_transient", preserving=False, alter=_alter)
