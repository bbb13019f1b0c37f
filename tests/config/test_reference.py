"""Every key has a range or a rule, and the reference states the enforced one.

python -m tests.config.test_reference        # write the tables of docs/configuration.md
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

from r2v.cli.main import main
from r2v.config import Config, load
from r2v.config.reference import READERS, ConfigKey, markdown, reference
from r2v.constraints import Distinct, Keywords, OneOf, OrAuto, Range, Text, check_fields, declared, unwrap
from r2v.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

FIELDS = {key: (base, constraints) for key, base, constraints in declared(Config)}
ROWS = {row.key: row for row in reference()}


def bare(base: Any, constraints: tuple[Any, ...]) -> list[str]:
    """Return the parts of a field's type that no rule bounds."""
    if (
        typing.get_origin(base) is Literal
        or base is bool
        or any(isinstance(one, (OneOf, OrAuto)) for one in constraints)
    ):
        return []
    if typing.get_origin(base) is list:
        inner = bare(*unwrap(typing.get_args(base)[0]))
        return inner if any(isinstance(one, Distinct) for one in constraints) else [*inner, "list"]
    if typing.get_origin(base) is dict:
        value = typing.get_args(base)[1]
        if dataclasses.is_dataclass(value):
            return [word for _, inner, rules in declared(typing.cast(type, value)) for word in bare(inner, rules)]
        return [] if any(isinstance(one, Keywords) for one in constraints) else ["mapping"]
    rule = {int: Range, float: Range, str: Text}.get(base)
    return [] if rule and any(isinstance(one, rule) for one in constraints) else [str(base)]


WEIGHTS = "hierarchical.rewards"
"""The only list that may hold a value twice; its length must be the number of turns, which is checked."""


def test_every_field_has_a_range_or_a_rule() -> None:
    assert {key: words for key, field in FIELDS.items() if (words := bare(*field))} == {WEIGHTS: ["list"]}


def test_there_are_at_most_290_keys() -> None:
    """A constant that is never changed belongs in the code; a key must be useful in most projects."""
    of_mappings = [hint for _, base, _ in declared(Config) for hint in typing.get_args(base)]
    inside = [
        key for hint in of_mappings if dataclasses.is_dataclass(hint) for key in declared(typing.cast(type, hint))
    ]
    assert len(FIELDS) + len(inside) <= 290, "a constant instead? if every project needs it, raise this number"


def test_a_number_without_a_range_would_be_noticed() -> None:
    assert bare(int, ()) and bare(float, (Text(),)) and bare(list[int], (Distinct(),)) and bare(dict[str, Any], ())


def test_the_reference_has_every_key_with_its_meaning() -> None:
    assert list(ROWS) == list(FIELDS)
    assert all(row.meaning for row in ROWS.values())
    assert ROWS["verifier.discount"] == ConfigKey(
        key="verifier.discount",
        type="float",
        default="0.4",
        allowed="in [0, 1]",
        meaning="Discount of a success per extra step, in [0, 1]; 1 would label every recoverable mistake as correct.",
        runtime=False,
        reader="research",
    )
    assert ROWS["rollout.workers"].runtime and ROWS["evaluation.budgets"].allowed.endswith("each in (0, 1)")
    assert ROWS["data.condition"].allowed == "clean, noisy"


def test_what_the_reference_says_of_a_number_is_what_its_refusal_says() -> None:
    numbers = {key: base for key, (base, _) in FIELDS.items() if base in (int, float)}
    config = copy.deepcopy(Config())
    for key, base in numbers.items():
        *sections, name = key.split(".")
        owner = functools.reduce(getattr, sections, config)
        value = getattr(owner, name)
        object.__setattr__(owner, name, -(10**13) if base is int else math.nan)
        with pytest.raises(UsageError) as refusal:
            check_fields("", config)
        assert f"{key} must be {ROWS[key].allowed}, got " in str(refusal.value)
        object.__setattr__(owner, name, value)
    check_fields("", config)
    with pytest.raises(UsageError, match=r"^training\.lr must be above 0 and at most 1e12, got nan"):
        load(None, ["training.lr=.nan"])


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--reference"]) == 0
    printed = capsys.readouterr().out
    assert printed == markdown() + "\n"
    assert "| `training.lr` | float; above 0 and at most 1e12 | `0.004` | Peak learning rate" in printed


def test_the_page_lists_the_keys_by_reader_the_everyday_ones_first() -> None:
    assert PAGE.read_text().endswith(markdown(short=True) + "\n"), "python -m tests.config.test_reference writes it"
    assert sum(row.reader == "everyday" for row in ROWS.values()) <= 40
    assert {row.reader for row in ROWS.values()} == set(READERS)
    assert all(not row.runtime or row.reader != "research" for row in ROWS.values())


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition(READERS["everyday"])
    PAGE.write_text(f"{before}{markdown(short=True)}\n")
