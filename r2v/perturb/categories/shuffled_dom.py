"""Shuffled DOM: the rows of a page are permuted below its header, the first line. Identifiers go with their rows.

A page without two different rows is never hit. Orders are drawn until one differs from the page's.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    header, *rows = scene.text.split("\n")
    if len(set(rows)) < 2:
        return None
    draw, shuffled = scene.generator("order"), list(rows)
    while shuffled == rows:
        draw.shuffle(shuffled)
    return Change(text="\n".join([header, *shuffled]))


CATEGORY = Category(kind="edit", group="distractor", alter=_alter)
