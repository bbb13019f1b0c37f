"""A small repository in SWE-bench's format, made by the tests: one bug, one hidden test file, and an honest runner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from r2v.envs.swe.home import swebench_home
from r2v.envs.swe.recipes import commit, evaluation
from r2v.envs.swe.repositories import git
from r2v.sandbox.process import lacking

walls = pytest.mark.skipif(bool(lacking()), reason=f"no sandbox here: {lacking()}")
"""Mark of tests that run commands, which need bubblewrap."""
graded = pytest.mark.skipif(
    not (swebench_home() / "grading").is_dir(), reason="swebench is not installed: `r2v swebench install` (make test)"
)
"""Mark of tests that grade, which need swebench's own functions."""

RIGHT = """\
diff --git a/total.py b/total.py
--- a/total.py
+++ b/total.py
@@ -1,3 +1,3 @@
 def total(numbers):
     \"\"\"The sum.\"\"\"
-    return sum(numbers) + 1
+    return sum(numbers)
"""
RUNNER = """\
import sys, traceback
from pathlib import Path
sys.path.insert(0, ".")
space = {}
exec(Path(sys.argv[1]).read_text(), space)
broken = 0
for name in [name for name in space if name.startswith("test_")]:
    try:
        space[name]()
        print(f"PASSED {sys.argv[1]}::{name}")
    except Exception:
        broken = 1
        print(f"FAILED {sys.argv[1]}::{name} - {traceback.format_exc().splitlines()[-1]}")
sys.exit(broken)
"""
TESTS = """\
from total import total

def test_sum():
    assert total([1, 2]) == 3

def test_kind():
    assert isinstance(total([]), int)
"""


def record(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return an instance whose repository lies in `folder`."""
    tree = folder / "sums"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    git(["init", "--quiet", "--template=", "."], tree)
    (tree / "total.py").write_text('def total(numbers):\n    """The sum."""\n    return sum(numbers) + 1\n')
    (tree / "runner.py").write_text(RUNNER)
    base = commit(tree, "base")
    (tree / "answer.txt").write_text("the solution, which comes later")
    commit(tree, "later")
    test_patch = "diff --git a/judge.py b/judge.py\nnew file mode 100644\n--- /dev/null\n+++ b/judge.py\n"
    test_patch += f"@@ -0,0 +1,{len(TESTS.splitlines())} @@\n" + "".join(f"+{line}\n" for line in TESTS.splitlines())
    script = evaluation(["judge.py"], test_patch).replace("python -m pytest -rA", "python runner.py")
    made = {
        "instance_id": "sums__sums-1",
        "repo": "sums",
        "version": "1.0",
        "base_commit": base,
        "problem_statement": "total() adds one too many",
        "patch": RIGHT,
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(["judge.py::test_sum"]),
        "PASS_TO_PASS": ["judge.py::test_kind"],
        "eval_script": script,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    return made | changes


def dataset(folder: Path, *records: dict[str, Any]) -> Path:
    """Write a file of instances; without any, the one of `record`."""
    path = folder / "instances.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records or (record(folder),)))
    return path


def bash(command: str) -> str:
    """Return the action that runs a command."""
    return json.dumps({"tool": "bash", "command": command})


SUBMIT = '{"tool":"submit"}'
