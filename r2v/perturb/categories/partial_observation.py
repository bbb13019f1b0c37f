"""Partial observation: a page of n lines keeps its first ceil((1 - severity) n), followed by a marker.

In the mode implicit_transient each line is lost with the severity as its probability, without a marker; if all would be
lost, the first is kept. A page of one line is never hit. A stored episode may be cut only if the remaining text still
supports every later action (`offline.lost_support`).
"""

from __future__ import annotations

import math

from r2v.perturb.category import Category, Change, Scene

MARKER = '{"note":"output truncated"}'


def _alter(scene: Scene) -> Change | None:
    lines = scene.text.split("\n")
    if scene.mode == "implicit_transient":
        return _with_lines_missing(scene, lines)
    keep = math.ceil(round((1 - scene.severity) * len(lines), 9))
    if len(lines) < 2 or keep == len(lines):
        return None
    return Change(text="\n".join([*lines[:keep], MARKER]), params={"lost": len(lines) - keep})


def _with_lines_missing(scene: Scene, lines: list[str]) -> Change | None:
    draw = scene.generator("lines")
    left = [line for line in lines if draw.random() >= scene.severity] or lines[:1]
    if len(left) == len(lines):
        return None
    return Change(text="\n".join(left), params={"lost": len(lines) - len(left)})


CATEGORY = Category(
    kind="edit", group="partial_observability", mode="explicit_transient", preserving=False, alter=_alter
)
