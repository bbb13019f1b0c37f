"""docs/library.md: its Python runs unchanged, as in a notebook: in an event loop that is already running."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import r2v
from tests.trust import MICRO

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_the_page_names_the_public_library() -> None:
    table = PAGE.read_text().split("## ")[0]
    assert set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.M)))) == set(r2v.__all__) - {
        "__version__"
    }


def test_its_python_runs_as_it_stands(micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    shutil.copytree(micro_run, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "configs").mkdir(exist_ok=True)
    shutil.copy(MICRO, tmp_path / "configs" / "mrp.yaml")
    held: dict[str, Any] = {}

    async def notebook() -> None:
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
            code = compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if (waiting := eval(code, held)) is not None:
                await waiting

    asyncio.run(notebook())
    decision, models = held["decision"], held["models"]
    assert (decision.source, decision.reason) == ("llm", "unknown tool list")
    assert "r2v" in [model.id for model in models.data]
    assert set(held["frame"]["method"]) >= {"r2v", "slm_only", "llm_only"}
