"""Renumbered DOM: elements of a page exchange identifiers, as when a rebuilt page numbers its elements anew.

The severity is the share of a page's identifiers (at least two) that are permuted. A call chosen on the page means the
element with that identifier on it; the next page has its own. A page with fewer than two identifiers is never hit.
"""

from __future__ import annotations

import math

from r2v.perturb.category import Category, Change, Scene
from r2v.perturb.renaming import Identifiers, identifiers


def _alter(scene: Scene) -> Change | None:
    on_page = identifiers(scene.text)
    if len(on_page) < 2:
        return None
    draw = scene.generator("identifiers")
    moved = draw.sample(on_page, max(2, math.ceil(round(scene.severity * len(on_page), 9))))
    names = dict(zip(moved, [*moved[1:], moved[0]], strict=True))
    renaming = Identifiers(names)
    return Change(text=renaming.for_agent(scene.text), params={"identifiers": names}, renaming=renaming)


CATEGORY = Category(kind="edit", group="distractor", alter=_alter)
