"""Latency: simulated seconds of an answer, up to MAX_LATENCY_SECONDS times the severity; the text is unchanged. At
severity 0 nothing is hit."""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene

MAX_LATENCY_SECONDS = 20.0


def _alter(scene: Scene) -> Change:
    seconds = round(MAX_LATENCY_SECONDS * scene.severity * scene.uniform("seconds"), 3)
    return Change(text=scene.text, seconds=seconds, params={"seconds": seconds})


CATEGORY = Category(kind="edit", group="tool_flakiness", alter=_alter)
