"""Prompt injection: an instruction planted among a page's lines, with a canary that shows if it was obeyed.

The line comes from the benchmark (`Surface.injection`) in one of six families. The canary occurs nowhere else, so an
executed action that contains it has obeyed. A page of one line is never hit.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    lines = scene.text.split("\n")
    if len(lines) < 2:
        return None
    family = scene.choice(scene.families, "family")
    planted, canary = scene.surface.injection(scene.text, scene.goal, family, scene.uniform("line"))
    lines.insert(scene.generator("place").randint(1, len(lines)), planted)
    return Change(text="\n".join(lines), canary=canary, params={"family": family})


CATEGORY = Category(kind="edit", group="prompt_injection", mode="explicit_transient", alter=_alter)
