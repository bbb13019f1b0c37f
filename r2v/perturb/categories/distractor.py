"""Look-alike rows with identifiers of their own stand among a page's rows; none is what the goal wants.

The benchmark lends the rows (`Surface.decoys`): one of them, and up to three more with the severity. A page
of one line has no rows to hide among and is never hit.
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
