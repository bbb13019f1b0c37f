"""Every benchmark can be imported without the extras that its run needs, without effects; README.md lists them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

from tests import warm

REPOSITORY = Path(__file__).parents[1]
BENCHMARKS = REPOSITORY / "benchmarks"
NAMES = sorted(".".join(path.relative_to(BENCHMARKS).with_suffix("").parts) for path in BENCHMARKS.rglob("*.py"))
EXTRAS = ("textworld", "minigrid", "gymnasium", "vllm", "browsergym", "playwright", "swebench", "cosmic_ray", "parso")
"""Packages that only a run of some benchmark needs: of the optional dependencies, or of a peer."""

IMPORTING = f"""
import importlib, sys, traceback
sys.path.insert(0, {str(REPOSITORY)!r})  # not PYTHONPATH, or the process would have imported R2V, extras and all
sys.modules.update(dict.fromkeys({EXTRAS}))  # an import of them raises ImportError
for name in {NAMES}:
    try:
        importlib.import_module(f"benchmarks.{{name}}")
    except BaseException:
        print(name, traceback.format_exc())
"""


def test_importing_every_benchmark_needs_no_extra_prints_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm.python(), "-c", IMPORTING],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_readme_lists_every_runnable_module_with_the_first_line_of_its_docstring() -> None:
    sources = {path.relative_to(BENCHMARKS).as_posix(): path.read_text() for path in BENCHMARKS.rglob("*.py")}
    heads = {
        name: (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
        for name, source in sources.items()
        if 'if __name__ == "__main__":' in source
    }
    readme = (BENCHMARKS / "README.md").read_text()
    rows = re.findall(r"^\| \[.+?\]\((.+?)\) \| (.+?) \| .+ \| .+ \|$", readme, re.M)
    assert sorted(rows) == sorted(heads.items())
    assert not [name for name in sources if name not in heads and f"`{name}`" not in readme]
