"""The rooms of r2v.hrl stand in layers, and no module imports itself through others."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import r2v.hrl

HRL = Path(r2v.hrl.__file__).parent
LAYERS = (("types",), ("tasks", "algorithm", "parallel"), ("models",), ("rollout",), ("training",), ("agent",))
"""Lowest first; rooms of one layer import nothing of each other."""


def imports() -> dict[str, set[str]]:
    """Every module of r2v.hrl with those of r2v.hrl that it imports, in functions and for type checking too."""
    modules = {
        ".".join(("r2v", "hrl", *path.relative_to(HRL).with_suffix("").parts)): path for path in HRL.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        graph[name] = wanted & modules.keys()
    return graph


def test_no_module_imports_itself_through_others() -> None:
    assert list(TopologicalSorter(imports()).static_order())


def test_each_room_imports_only_lower_rooms() -> None:
    height = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    for module, wanted in imports().items():
        room = module.split(".")[2]
        if room == "__init__":
            continue
        for other in (name.split(".")[2] for name in wanted):
            assert other == room or height[other] < height[room], f"{module} imports {other}"
