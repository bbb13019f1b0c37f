"""Targets of `make mutate` exist: its modules, their tests, and the lines of mutants declared equivalent."""

from __future__ import annotations

from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[1]
BENCHMARKS = REPOSITORY / "benchmarks"


def test_every_module_to_be_changed_has_tests_that_are_here() -> None:
    for module, more in yaml.safe_load((BENCHMARKS / "mutate.yaml").read_text()).items():
        assert (REPOSITORY / "r2v" / f"{module}.py").is_file(), module
        room, _, name = module.rpartition("/")
        files = [word for word in more.split() if word.endswith(".py")]
        tests = [REPOSITORY / "tests" / room / f"test_{name}.py", *(REPOSITORY / file for file in files)]
        assert [path.name for path in tests if not path.is_file()] == [], module


def test_an_equivalent_mutant_is_of_a_line_that_is_there_and_has_a_reason() -> None:
    for row in yaml.safe_load((BENCHMARKS / "equivalent_mutants.yaml").read_text()):
        lines = {line.strip() for line in (REPOSITORY / "r2v" / f"{row['module']}.py").read_text().splitlines()}
        assert set(row["before"].splitlines()) <= lines, row
        assert row["after"] != row["before"] and len(row["reason"]) > 20, row
