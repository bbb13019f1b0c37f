"""Mutation testing: one change at a time to the modules where a silent error hurts most, against their tests.

    make mutate                                              # a fixed sample of 300; resumes where it was stopped
    make mutate MODULES="evaluation/metrics storage/lease"   # those modules' part of it
    python benchmarks/mutate.py --list                       # the sample, without running anything

Each mutant (see mutants.py) is applied to a copy of this checkout and tested by the module's own tests first, then, if
it survives, by the quick tests of its package. Every set of tests must first pass without a mutant. Results are
appended to OUT/results.jsonl: a caught mutant is not tried again, a survivor only when its tests have changed.
`equivalent_mutants.yaml` names those that no test can catch, each with the reason. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.mutants import Mutant, drawn_mutants  # noqa: E402
from tests import warm  # noqa: E402

SAMPLE = 300
MODULES: dict[str, str] = yaml.safe_load((ROOT / "benchmarks" / "mutate.yaml").read_text())
"""Module below r2v/ to pytest arguments in addition to its own test file: further files, or options."""
EQUIVALENT = yaml.safe_load((ROOT / "benchmarks" / "equivalent_mutants.yaml").read_text()) or []
LEFT_OUT = ("test_imports.py",)
"""Tests that are never run: they check what an import loads, which a warm Python has loaded before."""
CPU_FLOOR = 20
"""CPU seconds allowed to a set of tests with a mutant, or 4 times its cost without one if that is more."""


def main(argv: list[str] | None = None) -> int:
    """Run the requested mutants, and print the table and the survivors; return 1 below `--at-least`."""
    options = parsed(argv)
    idle = options.list or options.report
    tree = ROOT if idle else copied(options.out / "tree")
    sample = drawn_mutants(tree, list(MODULES), options.sample)
    sample = {module: sample[module] for module in options.modules or MODULES}
    if options.list:
        print("\n".join(mutant.diff for mutants in sample.values() for mutant in mutants))
        return 0
    if not idle:
        run(sample, tree, options)
    return report(sample, read_results(options.out), options.at_least)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="modules below r2v/, such as evaluation/metrics")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants over all modules (default %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "mutation", help="folder of results (default mutation/)")
    parser.add_argument("--minutes", type=float, default=95.0, help="stop after this time (default %(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit with 1 if a smaller share is caught")
    parser.add_argument("--near", action="store_true", help="run only the modules' own tests")
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    parser.add_argument("--report", action="store_true", help="print the results so far and run nothing")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.modules) - set(MODULES)):
        parser.error(f"unknown modules {', '.join(unknown)}; choose from {', '.join(MODULES)}")
    return options


def run(sample: dict[str, list[Mutant]], tree: Path, options: argparse.Namespace) -> None:
    """Try every mutant without a result, until the time is up."""
    until = time.monotonic() + 60 * options.minutes
    results = read_results(options.out)
    baselines: dict[tuple[str, ...], Baseline] = {}
    with (options.out / "results.jsonl").open("a") as log:
        for module, mutants in sample.items():
            for mutant in mutants:
                if time.monotonic() > until:
                    print("time is up; repeat the command to resume", flush=True)
                    return
                if reason_of(mutant) is None:
                    earlier = results.get(mutant.id, {})
                    result = tried(mutant, tree, earlier, baselines, near=options.near)
                    log.write(json.dumps({**earlier, **result}) + "\n")
                    log.flush()
                    print(f"{result['outcome']:10s} {mutant.id} {module}:{mutant.line}", flush=True)


def tried(
    mutant: Mutant, tree: Path, earlier: dict[str, Any], baselines: dict[tuple[str, ...], Baseline], *, near: bool
) -> dict[str, Any]:
    """Return the mutant's result: `caught`, `timed out` or `survived`, and the hashes of the tests that it survived."""
    if earlier.get("outcome") in ("caught", "timed out"):
        return earlier
    met = dict(earlier.get("met", {}))
    for name, tests in list(test_sets(tree, mutant.module).items())[: 1 if near else None]:
        digest = digest_of(tree, tests)
        if met.get(name) == digest:
            continue
        if tests not in baselines:
            baselines[tests] = baseline(tree, tests)
        target = tree / "r2v" / f"{mutant.module}.py"
        original, stat = target.read_text(), target.stat()
        target.write_text(mutant.code)
        try:
            cpu, left_out = max(CPU_FLOOR, 4 * baselines[tests].cpu), baselines[tests].left_out
            code = pytest(tree, ("-x", *tests, *(f"--deselect={name}" for name in left_out)), cpu)
        finally:
            target.write_text(original)
            os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # compiled files stay those of the original
        if code == 5:
            raise SystemExit(f"pytest ran no test of: {' '.join(tests)}")
        if code:
            outcome = "timed out" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "caught"
            return {"id": mutant.id, "outcome": outcome, "by": name}
        met[name] = digest
    return {"id": mutant.id, "outcome": "survived", "met": met}


def test_sets(tree: Path, module: str) -> dict[str, tuple[str, ...]]:
    """Return a module's tests, nearest first: its own, then those of its package and of its importers."""
    mirror = Path("tests", module).with_name(f"test_{Path(module).name}.py")
    near = [mirror.as_posix(), *shlex.split(MODULES[module])]
    met = [] if any(word.startswith("-") for word in near) else near
    room, dotted = tree / "tests" / module.partition("/")[0], f"r2v.{module.replace('/', '.')} import"
    files = {*room.rglob("test_*.py"), *(p for p in (tree / "tests").rglob("test_*.py") if dotted in p.read_text())}
    wide = sorted(path.relative_to(tree).as_posix() for path in files if path.name not in LEFT_OUT)
    sets = {"near": tuple(near), "wide": (*(path for path in wide if path not in met), "--fast")}
    return {name: tests for name, tests in sets.items() if len(tests) > (name == "wide")}


def digest_of(tree: Path, tests: tuple[str, ...]) -> str:
    """Return a hash of the tests' files."""
    files = sorted({word.partition("::")[0] for word in tests if ".py" in word})
    return hashlib.sha256(b"".join((tree / path).read_bytes() for path in files)).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A set of tests without a mutant."""

    cpu: float
    """Seconds."""
    left_out: tuple[str, ...]
    """Tests that fail in a Python whose libraries are imported already, because they check what an import loads."""


def baseline(tree: Path, tests: tuple[str, ...]) -> Baseline:
    """Run the tests without a mutant. Ends the program if more than a few fail."""
    before = warm.cpu_seconds()
    code = pytest(tree, tests, 1200, write_bytecode=True)
    cpu = warm.cpu_seconds() - before
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+)", (tree.parent / "last-tests.log").read_text(), re.M))
    if code not in (0, 1) or len(failed) > 3:
        raise SystemExit(f"without a mutant, pytest ends with {code} for: {' '.join(tests)}")
    if failed:
        print(f"left out, as they fail without a mutant: {', '.join(failed)}", flush=True)
    return Baseline(cpu=cpu, left_out=failed)


def pytest(tree: Path, tests: tuple[str, ...], cpu: float, *, write_bytecode: bool = False) -> int:
    """Return pytest's exit code on these tests in the copy, or minus the signal that ended it. cpu: seconds allowed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 5))

    words = ["-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slurm"]
    words += ["-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0"]  # and no other plugin: they take a second
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **({} if write_bytecode else {"PYTHONDONTWRITEBYTECODE": "1"}),
    }
    with (tree.parent / "last-tests.log").open("w") as log:
        process = subprocess.Popen(
            [warm.python(), *words, *tests],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=limit,
        )
        try:
            return process.wait(timeout=60 + 2 * cpu)
        except subprocess.TimeoutExpired:
            process.kill()
            return -signal.SIGKILL if process.wait() else 0


def copied(tree: Path) -> Path:
    """Copy this checkout's files, new ones too: mutants never touch the checkout itself."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """Return the newest result of each mutant."""
    path = out / "results.jsonl"
    rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {row["id"]: row for row in rows}


def reason_of(mutant: Mutant) -> str | None:
    """Return the reason why no test can catch the mutant, from the list of equivalent ones; None if not listed."""
    for row in EQUIVALENT:
        if (row["module"], row["before"], row["after"]) == (mutant.module, mutant.before, mutant.after):
            return str(row["reason"])
    return None


def report(sample: dict[str, list[Mutant]], results: dict[str, dict[str, Any]], at_least: float) -> int:
    """Print the table, the equivalent mutants with their reasons, and the survivors with their diffs."""
    columns = ("caught", "timed out", "survived", "equivalent", "not tried")
    print(f"\n{'module':42s}" + "".join(f"{name:>12s}" for name in ("mutants", *columns, "noticed")))
    total, survivors, equivalents = Counter[str](), list[Mutant](), list[Mutant]()
    for module, mutants in sample.items():
        counts = Counter[str]()
        for mutant in mutants:
            equal = reason_of(mutant) is not None
            outcome = "equivalent" if equal else results.get(mutant.id, {}).get("outcome", "not tried")
            counts[outcome] += 1
            equivalents += [mutant] * (outcome == "equivalent")
            survivors += [mutant] * (outcome == "survived")
        total += counts
        print(line_of(module, counts, columns))
    print(line_of("all", total, columns))
    for mutant in equivalents:
        print(f"\nequivalent: {reason_of(mutant)}\n{mutant.diff}", end="")
    for mutant in survivors:
        print(f"\nsurvived: {mutant.id} {mutant.diff}", end="")
    return int(noticed(total) < at_least)


def noticed(counts: Counter[str]) -> float:
    """Return the share of the mutants tried, equivalent ones aside, that the tests noticed."""
    caught = counts["caught"] + counts["timed out"]
    return caught / max(1, caught + counts["survived"])


def line_of(name: str, counts: Counter[str], columns: tuple[str, ...]) -> str:
    """Return one line of the table."""
    return f"{name:42s}{counts.total():12d}" + "".join(f"{counts[c]:12d}" for c in columns) + f"{noticed(counts):12.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
