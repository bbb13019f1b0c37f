"""Grading of a patch: it is applied to a fresh repository, the tests run, and swebench's own functions read the log.

An instance is resolved if every test of FAIL_TO_PASS and of PASS_TO_PASS passes. Git's exit status decides if the
patch applies. The test log is partly written by the patched code: as in SWE-bench itself, code that forges its tests'
output can pass.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from r2v.envs.swe.home import INSTALL_COMMAND, swebench_home
from r2v.envs.swe.instances import Instance
from r2v.envs.swe.shells import TESTBED, Shell, write_file
from r2v.errors import UsageError

MODEL_PATCH, EVAL_SCRIPT = "/tmp/model.patch", "/tmp/eval.sh"
_END, _EXIT_CODE = ">>>>> End Test Output", ">>>>> Test Exit Code"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """Grade of a patch. `score`: the share of FAIL_TO_PASS that passes."""

    resolved: bool
    reason: str
    score: float = 0.0
    fault: str | None = None
    """Fault of the world, because of which nothing was measured."""


def grade(shell: Shell, instance: Instance, patch: bytes, *, timeout: int) -> Grade:
    """Grade a patch in a shell with a fresh repository. Raises UsageError if swebench is not installed."""
    official = official_grading()
    if not patch.strip():
        return Grade(resolved=False, reason="no change was submitted")
    script = with_exit_code(instance.eval_script)
    for path, data in ((MODEL_PATCH, patch), (EVAL_SCRIPT, script.encode())):
        if (problem := write_file(shell, path, data)) is not None:
            return Grade(resolved=False, reason="not graded", fault=f"{path} could not be written: {problem}")
    applied = shell.execute({"command": f"git apply --verbose {MODEL_PATCH}"}, TESTBED)
    if applied["returncode"] != 0:
        return Grade(resolved=False, reason=f"the patch does not apply: {_last(applied['output'])}")
    done = shell.execute({"command": f"bash {EVAL_SCRIPT}"}, TESTBED, timeout=timeout)
    if done["returncode"] == -1:
        return Grade(resolved=False, reason=f"the tests were {done['exception_info']}")
    return _judged(official, instance, patch.decode(errors="replace"), done["output"])


def _judged(official: ModuleType, instance: Instance, patch: str, text: str) -> Grade:
    spec = official.TestSpec(
        instance_id=instance.instance_id,
        image=instance.image,
        eval_script_list=[],
        repo=instance.repo,
        version=instance.version,
        FAIL_TO_PASS=list(instance.fail_to_pass),
        PASS_TO_PASS=list(instance.pass_to_pass),
        log_parser=instance.log_parser,
        eval_type=instance.eval_type,
    )
    prediction = {"instance_id": instance.instance_id, "model_name_or_path": "r2v", "model_patch": patch}
    with tempfile.TemporaryDirectory(prefix="r2v-") as folder:
        log = Path(folder, "run.log")
        log.write_text(text, "utf-8")
        report: dict[str, Any] = official.get_eval_report(spec, prediction, str(log), True)[instance.instance_id]
    if report.get("infra_failure"):
        why = f"the tests could not run: {report.get('infra_failure_reason')}"
        return Grade(resolved=False, reason="not graded", fault=why)
    tests = report.get("tests_status")
    if tests is None:
        return Grade(resolved=False, reason=f"the log holds no result of a test: {_last(text)}")
    passed, broken = len(tests["FAIL_TO_PASS"]["success"]), len(tests["PASS_TO_PASS"]["failure"])
    failing = len(instance.fail_to_pass)
    reason = f"{passed} of {failing} failing tests pass, {broken} of {len(instance.pass_to_pass)} others broke"
    return Grade(resolved=report["resolved"], reason=reason, score=passed / failing if failing else 0.0)


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing was printed"


def with_exit_code(script: str) -> str:
    """Return the evaluation script with the tests' exit code printed after their end mark; the official functions
    compare it with the log.

    >>> with_exit_code("pytest\\n: '>>>>> End Test Output'").splitlines()[-1]
    'echo ">>>>> Test Exit Code: $r2v_status"'
    """
    lines = [line for line in script.strip().splitlines() if line not in ("#!/bin/bash", "set -uxo pipefail")]
    at = next((index for index, line in enumerate(lines) if _END in line), None)
    if at is not None and not any(_EXIT_CODE in line for line in lines):
        lines[at : at + 1] = ["r2v_status=$?", lines[at], f'echo "{_EXIT_CODE}: $r2v_status"']
    return "\n".join(["#!/bin/bash", "set -uxo pipefail", *lines]) + "\n"


def require_grading() -> Path:
    """Return the folder of the package swebench without importing it. Raises UsageError if it is not installed."""
    try:
        spec = importlib.util.find_spec("swebench")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    own = swebench_home() / "grading" / "swebench"
    if not own.is_dir():
        raise UsageError(
            "env.benchmark=swebench: the package swebench, which grades, is not installed; run "
            f'`pip install -e ".[swebench]"` or `{INSTALL_COMMAND}`'
        )
    return own


@cache
def official_grading() -> ModuleType:
    """Return swebench.harness.grading, of the installed package or the installer's copy. Raises UsageError without
    either.

    The parent package imports docker and modal for its own runs; grading needs neither, so empty modules replace it.
    """
    folder = require_grading()
    for name, path in (("swebench", folder), ("swebench.harness", folder / "harness")):
        if name not in sys.modules:
            shell = ModuleType(name)
            shell.__path__ = [str(path)]
            sys.modules[name] = shell
    sys.path.append(str(folder.parent))  # last, so that the folder's other packages shadow nothing
    try:
        return importlib.import_module("swebench.harness.grading")
    finally:
        sys.path.remove(str(folder.parent))
