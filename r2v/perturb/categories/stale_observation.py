"""A cache answers: the action was carried out, but the page from before it is shown again.

The first observation has nothing before it and is never hit; nor is one that equals its predecessor.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    if scene.previous is None or scene.previous == scene.text:
        return None
    return Change(text=scene.previous)


CATEGORY = Category(kind="replace", group="partial_observability", preserving=False, alter=_alter)
