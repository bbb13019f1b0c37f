"""The elements of a page get each other's identifiers, as a page that is built anew numbers them anew.

The severity is the share of a page's identifiers (two at least) that change places. A call that is chosen on the page
means the element that bears the identifier there; the next page has its own. A page with fewer than two is never hit.
"""

from __future__ import annotations

import math

from r2v.perturb.category import Category, Change, Scene
from r2v.perturb.renaming import Identifiers, identifiers


def _alter(scene: Scene) -> Change | None:
    known = identifiers(scene.text)
    if len(known) < 2:
        return None
    draw = scene.generator("identifiers")
    moved = draw.sample(known, max(2, math.ceil(round(scene.severity * len(known), 9))))
    names = dict(zip(moved, [*moved[1:], moved[0]], strict=True))
    renaming = Identifiers(names)
    return Change(text=renaming.told(scene.text), params={"identifiers": names}, renaming=renaming)


CATEGORY = Category(kind="edit", group="distractor", alter=_alter)
