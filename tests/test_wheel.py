"""What is shipped: the package, its data, and no helper that only tests use."""

from __future__ import annotations

import ast
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel, which is built of a copy: setuptools leaves its work beside what it builds."""
    from setuptools import build_meta

    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(PACKAGE, folder / "r2v", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "fake"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["setup.py"])
        wheel = build_meta.build_wheel(str(folder))
    return set(zipfile.ZipFile(folder / wheel).namelist())


def test_a_wheel_holds_the_package_and_nothing_else(shipped: set[str]) -> None:
    here = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*.py")}
    modules = {name for name in shipped if name.endswith(".py")}
    assert modules == here
    assert {name.split("/")[0] for name in shipped if ".dist-info/" not in name} == {"r2v"}


def test_a_wheel_holds_the_data_that_the_package_reads(shipped: set[str]) -> None:
    data = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in data if Path(name).suffix not in {".py", ".pyc"}} <= shipped


def test_the_package_uses_every_module_that_it_ships() -> None:
    """Imported, named by a dotted path, or one of those that people import or run."""
    trees = {path.relative_to(REPOSITORY): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    used = {named for module, tree in trees.items() for node in ast.walk(tree) for named in names(node, dotted(module))}
    unused = {dotted(module) for module in trees if module.name != "__init__.py"} - used
    assert {name for name in unused if not name.startswith("r2v.perturb.categories.")} == OFFERED


OFFERED = {
    "r2v.__main__",
    "r2v.bundled.toy_policy",
    "r2v.envs.webarena.regrader",
    "r2v.envs.worker.boot",
    "r2v.llm.engines.launcher",
    "r2v.pipeline.play_bundle",
    "r2v.slurm.job",
}
"""For the interpreter, the shell, an engine's own Python, worlds in a child process, a program that plays a bundle, and
the interfaces that older scripts import."""


def dotted(path: Path) -> str:
    return path.with_suffix("").as_posix().replace("/", ".")


def names(node: ast.AST, module: str) -> set[str]:
    """The modules that a piece of source may mean: what it imports, or a string like r2v.stages.evaluate:STAGE."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("r2v."):
        return {node.value.partition(":")[0]} - {module}
    return set()
