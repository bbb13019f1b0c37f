"""Fixtures and reports of the whole suite: CPU cost per test, and the quick tier without the costly tests.

CPU seconds include finished child processes; a fixture's cost counts for the first test that requests it. `slow.txt`
lists the tests that `make test-fast` skips, besides those of `micro_run`; the report names tests missing from it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import trust, warm

hypothesis.settings.register_profile(  # a busy machine is slow, which is no failure
    "r2v", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("r2v")

COST = "cpu_seconds"
BEGUN = pytest.StashKey[float]()
LINES = 10
SLOW = set((Path(__file__).parent / "slow.txt").read_text().split())
"""Test functions of more than about .15 CPU seconds, all cases together, and files with many such functions."""
SLOW_SECONDS = 1.0
STARTS_RANKS = re.compile(r"warm_ranks|distributed\.launch|training\.ranks=[2-9]")
"""Text of a file whose tests start several ranks."""


@pytest.fixture(scope="session")
def micro_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the finished folder of `r2v run --config tests/micro.yaml`: made once, by the first worker that needs it,
    and never altered (copy it, and replace files instead of writing into them if you copy by hard links)."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / "micro-run", shared / "micro-run.done"
    with (shared / "micro-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker makes it, the others wait here
        if not done.exists():
            folder.mkdir(exist_ok=True)
            process = warm.run(folder, "run", "--config", str(trust.MICRO))
            assert process.returncode == 0, process.stderr
            done.touch()
    return folder


@pytest.fixture(scope="module")
def warm_ranks() -> Iterator[None]:
    """Make the ranks that `distributed.launch` starts from here processes with torch and its like already imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python())
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests of tests/slow.txt (make test-fast)")
    parser.addoption("--whole-suites", action="store_true", help="every case of the big suites, not a draw of them")
    parser.addoption("--costs", metavar="FILE", help="write each test's CPU seconds to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    # `nohup make test &` ignores both, and so would every command that a test signals.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trust.whole_suites = config.getoption("--whole-suites")
    if workers := config.getoption("tx", None):  # set by `-n`, and empty in a worker
        config.option.tx = [f"popen//python={warm.worker_python()}"] * len(workers)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one worker, for its fixtures, and those of all files that start ranks: each rank
    needs a processor."""
    from xdist.scheduler import LoadFileScheduling

    class OneGroupOfRanks(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ranks" if starts_ranks(config.rootpath / file) else file

    return OneGroupOfRanks(config, log)


@cache
def starts_ranks(file: Path) -> bool:
    """True if a test of the file starts several ranks."""
    return STARTS_RANKS.search(file.read_text()) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Rewrite asserts once, in the first of the workers and before the others collect. The result is cached as pytest
    does, even if PYTHONDONTWRITEBYTECODE is set: each worker of each suite would take ten seconds otherwise."""
    forbidden, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        if not hasattr(session.config, "workerinput"):
            return (yield)
        with (warm.start_server() / "collected").open("a") as done:
            fcntl.flock(done, fcntl.LOCK_EX)
            if os.fstat(done.fileno()).st_size:
                fcntl.flock(done, fcntl.LOCK_UN)
            result = yield
            done.write("by a worker")
            return result
    finally:
        sys.dont_write_bytecode = forbidden


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return True for a file of which the quick tier would run nothing, so that it is not imported; None leaves it to
    pytest."""
    return config.getoption("--fast") and str(collection_path.relative_to(config.rootpath)) in SLOW or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        left_out = {item for item in items if is_slow(item.nodeid) or "micro_run" in getattr(item, "fixturenames", ())}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if not trust.whole_suites:
        for item in items:
            if item.get_closest_marker("whole"):
                item.add_marker(pytest.mark.skip(reason="--whole-suites plays it"))


def is_slow(nodeid: str) -> bool:
    """True if `slow.txt` names the test, with any of its parameters, or its file."""
    return nodeid.partition("[")[0] in SLOW or nodeid.partition("::")[0] in SLOW


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + warm.cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGUN] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    """Add the cost of each phase to its report; properties travel from xdist's workers."""
    report = yield
    now = cpu_seconds()
    report.user_properties = [*report.user_properties, (COST, now - item.stash[BEGUN])]
    item.stash[BEGUN] = now
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the files that cost most, whichever workers ran them, and the tests that the quick tier should skip."""
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for report in {id(report): report for reports in terminalreporter.stats.values() for report in reports}.values():
        for name, seconds in getattr(report, "user_properties", ()):
            if name == COST:
                tests[report.nodeid] += seconds
                files[report.nodeid.partition("::")[0]] += seconds
    terminalreporter.section(f"{files.total():.0f} CPU seconds in tests; the files that cost most")
    for name, seconds in files.most_common(LINES):
        terminalreporter.line(f"{seconds:7.1f} s  {name}")
    for name, seconds in tests.most_common():
        if seconds > SLOW_SECONDS and not is_slow(name):
            terminalreporter.line(f"{seconds:7.1f} s  {name} is not in tests/slow.txt")
    if path := config.getoption("--costs"):
        Path(path).write_text(json.dumps(dict(tests.most_common()), indent=1))
