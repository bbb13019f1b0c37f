"""The rows of a page change places; its header, the first line, stays. Identifiers go with their rows."""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    header, *rows = scene.text.split("\n")
    if len(rows) < 2:
        return None
    scene.generator("order").shuffle(rows)
    return Change(text="\n".join([header, *rows]))


CATEGORY = Category(kind="edit", group="distractor", alter=_alter)
