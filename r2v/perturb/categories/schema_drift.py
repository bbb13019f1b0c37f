"""The interface has a new version: fields of its pages and arguments of its calls bear another name, from then on.

The severity is the share of names that change, the same ones until the episode ends. A call by an old name reaches the
world as one that it does not know, and the tools are told by their new names. What is no JSON has no fields; where none
of a page's fields and no tool's argument changes its name, nothing is hit. In the mode explicit_permanent a line at the
end of each page announces the new version.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene
from r2v.perturb.renaming import SUFFIX, Fields, fields_of

ANNOUNCEMENT = f'{{"note":"new version: names of some fields and arguments end in {SUFFIX} now, or no longer do"}}'


def _alter(scene: Scene) -> Change | None:
    if not scene.severity:
        return None
    renaming = Fields(scene.key, scene.severity)
    told = renaming.told(scene.text)
    same_tools = all(renaming.schema(tool.parameters) == tool.parameters for tool in scene.tools)
    if told == scene.text and scene.tools and same_tools:
        return None
    params = {"fields": fields_of(scene.text, renaming.name)}
    announced = f"{told}\n{ANNOUNCEMENT}" if scene.mode == "explicit_permanent" else told
    return Change(text=announced, params=params, renaming=renaming)


CATEGORY = Category(kind="edit", group="tool_flakiness", mode="implicit_permanent", alter=_alter)
