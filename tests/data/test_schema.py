"""Schema validation: a value of another type than its field declares is refused with its path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from r2v.data.schema import SchemaError, from_dict, parse_json


@dataclass(frozen=True, kw_only=True)
class Inner:
    weight: float
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    count: int = 0
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    inner: tuple[Inner, ...] = ()
    by_name: dict[str, list[int]] = field(default_factory=dict)
    pair: tuple[float, float] | None = None
    free: dict[str, Any] = field(default_factory=dict)


def test_a_record_becomes_its_dataclass_and_nothing_is_converted() -> None:
    record = {
        "name": "x",
        "count": 3,
        "inner": [{"weight": 1}],
        "by_name": {"n": [1]},
        "pair": [0.5, 2],
        "free": {"k": None},
    }
    assert from_dict(Outer, record) == Outer(
        name="x", count=3, inner=(Inner(weight=1),), by_name={"n": [1]}, pair=(0.5, 2), free={"k": None}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "name: expected text, got null"),
        ({"name": 3}, "name: expected text, got 3"),
        ({"count": 1.0}, "count: expected a whole number, got 1.0"),
        ({"count": True}, "count: expected a whole number, got true"),
        ({"count": 1 << 70}, "count: expected a whole number, got 1180591620717411303424"),
        ({"count": 10**400}, "count: expected a whole number, got a huge number"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"kind": "c"}, "kind: expected one of a, b, got 'c'"),
        ({"kind": []}, "kind: expected one of a, b, got a list"),
        ({"inner": {}}, "inner: expected a list, got an object"),
        ({"inner": [{"weight": 1}, {"weight": "1"}]}, r"inner\[1\].weight: expected a finite number, got '1'"),
        ({"inner": [{"weight": float("nan")}]}, r"inner\[0\].weight: expected a finite number, got NaN"),
        ({"inner": [{"weight": 10**400}]}, r"inner\[0\].weight: expected a finite number, got a huge number"),
        ({"inner": [{}]}, r"inner\[0\].weight: expected field weight of Inner, got null"),
        ({"inner": [{"weight": 1, "other": 2}]}, r"inner\[0\].other: expected no field other in Inner, got 2"),
        ({"by_name": {"n": [1, None]}}, r"by_name.n\[1\]: expected a whole number, got null"),
        ({"by_name": []}, "by_name: expected an object, got a list"),
        ({"pair": [1.0]}, "pair: expected a list of 2, got a list"),
        ({"free": "no"}, "free: expected an object, got 'no'"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message) as refused:
        from_dict(Outer, {"name": "x", **change})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_what_is_no_object_is_no_record(value: Any) -> None:
    with pytest.raises(SchemaError, match="the record: expected an object"):
        from_dict(Outer, value)


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": Infinity}', "[-Infinity]", "[" * 100_000, '{"a":' * 100_000, "", "{", "9" * 5_000]
)
def test_what_json_does_not_know_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
