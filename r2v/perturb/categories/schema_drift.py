"""Schema drift: a new version of the interface renames fields of pages and arguments of calls, from its first hit on.

The severity is the share of names that change, the same ones until the episode ends. A call with an old name reaches
the world with an unknown one, and tool declarations have the new names. Only JSON text has fields; without a renamed
field of the page or argument of a tool, nothing is hit. In the mode explicit_permanent a line at the end of each page
announces the new version.
"""

from __future__ import annotations

from r2v.perturb.category import Category, Change, Scene
from r2v.perturb.renaming import SUFFIX, Fields, fields_of

ANNOUNCEMENT = f'{{"note":"new version: names of some fields and arguments end in {SUFFIX} now, or no longer do"}}'


def _alter(scene: Scene) -> Change | None:
    if not scene.severity:
        return None
    renaming = Fields(scene.key, scene.severity)
    renamed = renaming.for_agent(scene.text)
    same_tools = all(renaming.schema(tool.parameters) == tool.parameters for tool in scene.tools)
    if renamed == scene.text and scene.tools and same_tools:
        return None
    params = {"fields": fields_of(scene.text, renaming.name)}
    announced = f"{renamed}\n{ANNOUNCEMENT}" if scene.mode == "explicit_permanent" else renamed
    return Change(text=announced, params=params, renaming=renaming)


CATEGORY = Category(kind="edit", group="tool_flakiness", mode="implicit_permanent", alter=_alter)
