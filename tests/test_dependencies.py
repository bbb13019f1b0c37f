"""Declared dependencies equal the imports of the package: none is present only through another package."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
distributions = cache(packages_distributions)
"""Module to its distributions."""
OPTIONAL = {"aiohttp", "deepspeed", "gymnasium", "minigrid", "starlette", "textworld", "uvicorn", "wandb", "yarl"}
"""Imported only for some configurations; an extra declares each."""


def normal(requirement: str) -> str:
    """Return a distribution's name, normalised as indexes do, without its version and extras."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def imported(folder: Path) -> set[str]:
    """Return the top-level modules of other projects that the files below a folder import, inside functions too."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"r2v", "tests", "examples", "__future__"}


def declares(module: str, declared: set[str]) -> bool:
    """True if a distribution that provides the module is declared; if it is not installed, by the module's name."""
    return bool({normal(name) for name in distributions().get(module, [module])} & declared)


def test_everything_imported_is_declared() -> None:
    train = PROJECT["optional-dependencies"]["train"]
    core = {normal(requirement) for requirement in [*PROJECT["dependencies"], *train]}
    undeclared = {module for module in imported(REPOSITORY / "r2v") if not declares(module, core)}
    assert undeclared == OPTIONAL


def test_every_optional_import_has_an_extra() -> None:
    extras = {
        normal(requirement)
        for name, requirements in PROJECT["optional-dependencies"].items()
        if name != "dev"
        for requirement in requirements
    }
    assert {module for module in OPTIONAL if not declares(module, extras)} == set()
