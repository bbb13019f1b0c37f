"""The GPU check, as far as a machine without a GPU can hold it: its names are there, and what a CPU can run runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_name_that_its_parts_import_is_there() -> None:
    imported = [node for node in ast.walk(ast.parse(PATH.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in imported:
        if node.module and node.module.startswith("r2v"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_override_and_option_of_its_parts_is_one_that_is_taken(check: ModuleType) -> None:
    from r2v.config import load

    for overrides in (check.EVERY_ROLE, check.OFFLOADED):
        load(PATH.parents[1] / "configs/hierarchical.yaml", [*check.SHORT_TRAINING.split(), *overrides.split()])
    for _, (program, *options) in check.PROGRAMS.values():
        text = (PATH.parents[1] / program).read_text()
        for option in (word for word in options if word.startswith("--")):
            assert f'"{option}"' in text or f'("{option[2:]}"' in text or f'"{option[2:]}"' in text, (program, option)


def test_the_numbers_agree_on_a_cpu(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    check.numbers("cpu")
    assert capsys.readouterr().out.count("same tokens") == 3


def test_without_a_gpu_it_says_so(check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: make gpu-check")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "out")])
    assert check.main() == 5 and not (tmp_path / "out").exists()
