"""Distractor: look-alike rows with identifiers of their own among a page's rows; none satisfies the goal.

The rows come from the benchmark (`Surface.decoys`): one row and, growing with the severity, up to three more. A page of
one line is never hit.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    lines = scene.text.split("\n")
    if len(lines) < 2:
        return None
    count = 1 + round(3 * scene.severity)
    decoys = scene.surface.decoys(scene.text, scene.goal, count, scene.uniform("rows"))
    draw = scene.generator("places")
    for decoy in decoys:
        lines.insert(draw.randint(1, len(lines)), decoy)
    return Change(text="\n".join(lines), params={"rows": decoys}) if decoys else None


CATEGORY = Category(kind="edit", group="distractor", alter=_alter)
