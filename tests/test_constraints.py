"""Constraints in annotations: every declared bound is enforced."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2v.constraints import (
    NAME,
    Constraint,
    Count,
    Distinct,
    Keywords,
    Name,
    OneOf,
    OrAuto,
    Range,
    Seed,
    Share,
    Text,
    check_fields,
    declared,
    require,
    shown,
)
from r2v.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Inner:
    share: Share = 0.5


@dataclass(frozen=True, kw_only=True)
class Section:
    count: Count | None = 3
    names: Annotated[list[Name], Distinct()] = field(default_factory=lambda: ["a"])
    seeds: list[Seed] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)
    more: dict[str, Inner] = field(default_factory=dict)


REFUSED = {
    "a count": (Section(count=0), "top.count must be above 0 and at most 1e12, got 0"),
    "a list": (Section(names=[]), "top.names must be distinct and not empty, got []"),
    "a list with one name twice": (
        Section(names=["a", "a"]),
        "top.names must be distinct and not empty, got ['a', 'a']",
    ),
    "an element": (Section(names=["../x"]), "top.names must be a name: letters, digits, . _ and -, not a path"),
    "a number in a list": (Section(seeds=[1, -1]), "top.seeds must be in [0, 9223372036854775807], got -1"),
    "a field of an inner section": (Section(inner=Inner(share=math.nan)), "top.inner.share must be in [0, 1], got nan"),
    "a section by name": (Section(more={"x": Inner(share=2)}), "top.more.x.share must be in [0, 1], got 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_out_of_its_range_is_refused_with_its_key_and_what_is_allowed(name: str) -> None:
    section, words = REFUSED[name]
    with pytest.raises(UsageError) as refusal:
        check_fields("top", section)
    assert words in str(refusal.value)


def test_a_section_within_its_ranges_passes_and_none_stands_for_a_default() -> None:
    check_fields("top", Section())
    check_fields("", Section(count=None, names=["a", "b.c-D_9"], seeds=[0, 2**63 - 1], more={"x": Inner(share=1)}))


def test_every_field_is_declared_once_with_its_constraints() -> None:
    rows = {
        key: (base, [constraint.text for constraint in constraints]) for key, base, constraints in declared(Section)
    }
    assert list(rows) == ["count", "names", "seeds", "inner.share", "more"]
    assert rows["count"] == (int, ["above 0 and at most 1e12"])
    assert rows["inner.share"] == (float, ["in [0, 1]"])


BOUNDS: list[tuple[Range, list[float], list[float]]] = [
    (Range(at_least=0, at_most=1), [0, 1, 0.5, True + 0], [-1e-9, 1 + 1e-9]),
    (Range(above=0, below=1), [1e-300, 0.999], [0, 1]),
    (Range(above=0), [1, 10**12], [0, -1, 10**12 + 1, 10**400]),
    (Range(at_most=3), [3, -5], [3.5]),
    (Range(), [0, -1.5], [1e13, -1e13]),
]


@pytest.mark.parametrize(("allowed", "good", "bad"), BOUNDS, ids=lambda value: getattr(value, "text", None))
def test_bounds_are_what_they_say(allowed: Range, good: list[float], bad: list[float]) -> None:
    assert all(allowed.allows(value) for value in good)
    assert not any(allowed.allows(value) for value in [*bad, math.nan, math.inf, -math.inf, True, "1", None])


EVERY: list[Constraint] = [
    Range(),
    NAME,
    Text(lines=True),
    Distinct(),
    Keywords(),
    OneOf(values=(True, "auto")),
    OrAuto(rule=Range()),
]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_no_value_makes_a_constraint_raise_and_a_refusal_is_one_printable_line(value: Any) -> None:
    for constraint in EVERY:
        try:
            require("key", constraint, value)
        except UsageError as error:
            assert "\n" not in str(error) and "\x1b" not in str(error)
            assert len(str(error)) < 400


@pytest.mark.parametrize("name", ["mrp", "v0.1", "webarena_gpt-4o_20260101T000000", "007", "a" * 200])
def test_names_that_are_in_use_are_names(name: str) -> None:
    assert NAME.allows(name)


@pytest.mark.parametrize(
    "name",
    ["", "..", ".", "a/b", "/abs", "a b", "a\nb", "a\n", "\x1b[2J", "~", "-x", "{p}", "a\u202eb", "é", "a" * 201],
)
def test_paths_control_characters_and_long_words_are_no_names(name: str) -> None:
    assert not NAME.allows(name)


def test_true_is_not_one() -> None:
    assert OneOf(values=(0, 2, 3)).allows(2) and not OneOf(values=(0, 1)).allows(True)
    assert OneOf(values=(True, False, "auto")).text == "true, false or auto"


def test_auto_stands_beside_numbers() -> None:
    rule = OrAuto(rule=Range(at_least=1, at_most=4))
    assert [rule.allows(value) for value in ("auto", 1, 4, 0, "1", "automatic", True, None)] == [True] * 3 + [False] * 5
    assert rule.text == "auto or in [1, 4]"


def test_keyword_arguments_hold_plain_finite_values() -> None:
    allowed = Keywords()
    assert allowed.allows({"num_tasks": 3, "p_easy": 0.5, "hosts": ["a", {"b": None}]})
    for bad in ({"x": math.nan}, {"x": [math.inf]}, {"a b": 1}, {1: 1}, {"x": "\x1b]0;title\x07"}, [], {"x": object()}):
        assert not allowed.allows(bad)


def test_a_refused_secret_is_not_repeated() -> None:
    with pytest.raises(UsageError) as refusal:
        require("key", Text(pattern="[A-Z]+", meaning="a variable", secret=True), "sk-1234")
    assert "sk-1234" not in str(refusal.value)


def test_a_long_value_is_cut_and_controls_are_escaped() -> None:
    assert shown("x" * 500) == "x" * 120 + "..."
    assert shown("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
    assert shown("") == "nothing"
