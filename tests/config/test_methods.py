"""Ablations as data: every row follows from the file, and the page describes the same rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from r2v.config import load
from r2v.config.evaluation import CONDITIONS
from r2v.config.methods import METHODS, registry

PAGE = Path(__file__).parents[2] / "docs" / "ablations.md"
REMOVED = {"dagger", "rft"}
"""Rows of the results whose code was removed from the package, as the page says."""


@pytest.mark.parametrize("name", registry().rows)
def test_a_row_names_methods_conditions_and_keys_that_exist(name: str) -> None:
    row = registry().rows[name]
    assert {row.base_method, row.ablated_method} <= set(METHODS)
    assert row.condition is None or row.condition in CONDITIONS
    load(None, [*row.shared, *row.overrides])


def test_what_is_said_of_several_rows_names_rows() -> None:
    named = [*registry().default, *(name for name, _ in registry().learned_parts.values())]
    assert set(named) <= set(registry().rows)
    assert {sign for _, sign in registry().learned_parts.values()} == {1, -1}
    assert len(set(registry().default)) == len(registry().default)


def test_the_page_describes_each_row_as_the_file_does() -> None:
    page = PAGE.read_text()
    table = page.partition("| row | what |")[2].partition("\n\n")[0]
    described = dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", table, re.MULTILINE))
    assert len(described) > 30
    assert {name: described[name] for name in described.keys() - REMOVED} == {
        name: registry().rows[name].description for name in described.keys() - REMOVED
    }
    assert f"{('eight', 'nine', 'ten')[len(registry().default) - 8]} by default" in page


def test_every_command_of_the_page_names_rows() -> None:
    commands = re.findall(r"--names ((?:\w+|\\\n|[ ])+)", PAGE.read_text())
    named = {name for words in commands for name in words.replace("\\\n", " ").split()}
    assert len(named) > 40 and named <= {*registry().rows, "all", "r2v"}
