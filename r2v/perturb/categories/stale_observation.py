"""Stale observation: the action was carried out, but a cache shows the page from before it.

The first observation and one that equals its predecessor are never hit.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene


def _alter(scene: Scene) -> Change | None:
    if scene.previous is None or scene.previous == scene.text:
        return None
    return Change(text=scene.previous)


CATEGORY = Category(kind="replace", group="partial_observability", preserving=False, alter=_alter)
