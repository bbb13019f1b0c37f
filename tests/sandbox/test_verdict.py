"""The verdict: the result of plain tests on a program, with and without walls, whatever the program prints itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.sandbox import process
from r2v.sandbox.limits import Limits
from r2v.sandbox.process import require
from r2v.sandbox.verdict import passes
from tests.sandbox import MODES, sandboxed
from tests.sandbox.programs import FIT, FORGERIES, RAW
from tests.trust import drawn

TESTS = """
assert f(2) == 4
assert abs(f(3) - 9) < 1e-9
assert f(4) in (16,)
assert not f(5) != 25
assert sum(f(i) for i in range(3)) == 5
"""
RIGHT = "def f(x): return x * x"


@pytest.mark.parametrize("unsafe", MODES)
@pytest.mark.parametrize("name", drawn(list(FIT), 12, "programs that are right"))
def test_a_right_program_passes(name: str, unsafe: bool) -> None:
    code, tests = FIT[name]
    assert passes(code, tests, unsafe=unsafe)


@sandboxed
def test_one_wrong_value_fails() -> None:
    for tests in ("assert f(2) == 5", "assert f(2) == 4\nassert f(3) == 8", "assert f(2)", "f()", "assert g(2) == 4"):
        assert not passes("def f(x): return x * x if x != 2 or __name__ else 0\nf = f if 0 else lambda x: 0", tests)


ALL_FORGERIES = FORGERIES | {
    f"raw: {name}": "import os\ndef f(x):\n    for n in range(3, 64):\n"
    f"        try: os.write(n, {line!r}.encode() + b'\\n')\n        except OSError: pass\n    os._exit(0)"
    for name, line in RAW.items()
}


@pytest.mark.parametrize("unsafe", MODES)
@pytest.mark.parametrize("tests", [TESTS, "assert f(2) == 4"], ids=["several tests", "one test"])
@pytest.mark.parametrize("name", drawn(list(ALL_FORGERIES), 14, "forgeries"))
def test_a_verdict_cannot_be_forged(name: str, tests: str, unsafe: bool) -> None:
    """Wrong, however it claims otherwise; and the caller survives."""
    assert passes(ALL_FORGERIES[name], tests, unsafe=unsafe, limits=Limits(cpu_seconds=2)) is False
    assert os.getpid() > 0


@sandboxed
def test_a_bare_except_of_the_tests_does_not_hide_that_the_program_left() -> None:
    tests = "try:\n    f(1)\nexcept BaseException:\n    pass"
    assert passes("def f(x): raise ValueError", tests)
    assert not passes("import os\ndef f(x): os._exit(0)", tests)


@sandboxed
def test_the_tests_helpers_cannot_be_reached_through_a_function_that_they_hand_over() -> None:
    spy = "def f(g):\n    try: return g.__globals__['SECRET']\n    except AttributeError: return 'nothing'"
    assert passes(spy, "SECRET = 4\nassert f(lambda x: x) == 'nothing'")


@sandboxed
def test_tests_that_give_what_is_no_data_are_named() -> None:
    with pytest.raises(InputError, match="give the answer a Own, which is no data"):
        passes(RIGHT, "class Own: pass\nf(Own())")


@sandboxed
def test_a_program_that_does_not_end_is_cut_off_by_either_clock() -> None:
    assert not passes(f"{RIGHT}\nwhile True: pass", TESTS, limits=Limits(cpu_seconds=1))
    assert not passes(f"import time\n{RIGHT}\ntime.sleep(60)", TESTS, limits=Limits(wall_seconds=0.5))
    endless = "def f(x):\n    while True: yield 1"
    assert not passes(endless, "assert sum(f(1)) == 4", limits=Limits(wall_seconds=0.5))


@sandboxed
def test_no_process_is_left_and_no_descriptor() -> None:
    before = open_files(), children()
    for code in (RIGHT, "import os\nos._exit(0)", "import os, signal\nos.kill(0, signal.SIGSTOP)"):
        passes(code, TESTS, limits=Limits(wall_seconds=1))
    assert (open_files(), children()) == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_a_sandbox_that_cannot_be_had_is_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    process.lacking.cache_clear()
    try:
        with pytest.raises(
            EnvironmentFault, match=r"bubblewrap is not installed; .*hierarchical.problems.unsafe=true"
        ) as refused:
            passes(RIGHT, TESTS)
        assert "\n" not in str(refused.value)
        require(unsafe=True)
        assert passes(RIGHT, TESTS, unsafe=True)
    finally:
        process.lacking.cache_clear()


def test_a_bubblewrap_that_may_make_no_namespaces_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    process.lacking.cache_clear()
    try:
        with pytest.raises(
            EnvironmentFault, match=r"No permissions to create a new namespace\); let it make namespaces"
        ):
            passes(RIGHT, TESTS)
    finally:
        process.lacking.cache_clear()


def test_limits_are_above_0() -> None:
    with pytest.raises(UsageError, match=r"Limits.memory must be above 0, got 0"):
        Limits(memory=0)
