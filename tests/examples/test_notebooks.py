"""Notebooks use the public library alone, and run from their first cell to their last in an empty folder."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

import r2v

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
FILE = "%%writefile "
OTHERS = {"matplotlib", "openai", "orders", "pandas", *sys.stdlib_module_names}
"""Modules that cells import beside R2V's; `orders` is a file that a notebook writes."""


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def sources(name: str) -> list[str]:
    """Return the Python of the code cells: of a cell that writes a file, the file's."""
    cells = (cell.source for cell in read(name).cells if cell.cell_type == "code")
    return [cell.partition("\n")[2] if cell.startswith(FILE) else cell for cell in cells]


def extension_modules() -> set[str]:
    """Return the modules that the page on own benchmarks has its reader import."""
    page = (ROOT / "docs" / "adding-a-benchmark.md").read_text()
    return set(re.findall(r"^from (r2v\.[\w.]+) import", page, re.M))


def test_there_are_three() -> None:
    assert NOTEBOOKS == ["own_benchmark", "own_logs", "serve_and_record"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_small_valid_and_without_outputs_and_each_cell_is_introduced(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 16_000
    kinds = [cell.cell_type for cell in notebook.cells]
    assert all(before == "markdown" for before, kind in zip(kinds, kinds[1:], strict=False) if kind == "code")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_cells_are_python_and_take_public_names_alone(name: str) -> None:
    transform = TransformerManager().transform_cell
    for source in sources(name):
        code = transform(source)
        compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "r2v":
                assert node.attr in r2v.__all__
            elif isinstance(node, ast.Import):
                assert all(alias.name == "r2v" or alias.name.split(".")[0] in OTHERS for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module in extension_modules() or str(node.module).split(".")[0] in OTHERS


@pytest.mark.whole
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_in_an_empty_folder_with_nothing_but_the_package(name: str, tmp_path: Path) -> None:
    home, package = tmp_path / "home", tmp_path / "package"
    home.mkdir(), package.mkdir()
    (package / "r2v").symlink_to(ROOT / "r2v")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "ANTHROPIC_", "R2V_"))}
    notebook = read(name)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(home)}})
    client.execute(env={**kept, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream")
    assert not re.search(r"\x1b|Traceback|Warning", said), said
    shown = [output.data for output in outputs if output.output_type != "stream"]
    assert any("stage 2 of 5" in data["text/html"] or "stage 3 of 10" in data["text/html"] for data in map(html, shown))
    last = {"own_benchmark": "image/png", "own_logs": "who acts", "serve_and_record": "LLM turns"}[name]
    assert any(last in data or last in data["text/html"] for data in map(html, shown))


def html(data: Any) -> Any:
    return {"text/html": "", **data}
