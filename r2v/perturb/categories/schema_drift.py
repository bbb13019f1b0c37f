"""The interface has a new version: fields of its pages and arguments of its calls bear another name, from then on.

The severity is the share of names that change, the same ones until the episode ends. A call by an old name reaches the
world as one that it does not know, and the tools are told by their new names. What is no JSON has no fields.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene
from r2v.perturb.renaming import Fields, fields_of


def _alter(scene: Scene) -> Change | None:
    if not scene.severity:
        return None
    renaming = Fields(scene.key, scene.severity)
    params = {"fields": fields_of(scene.text, renaming.name)}
    return Change(text=renaming.told(scene.text), params=params, renaming=renaming)


CATEGORY = Category(kind="edit", group="tool_flakiness", mode="implicit_permanent", alter=_alter)
