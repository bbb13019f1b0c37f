"""Conversion of a plain answer to the form of webarena-verified, and the answers that cannot be converted."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.envs.webarena.regrader import _response


def rule(kind: str = "retrieve", status: str = "SUCCESS", of: str | None = "string", wanted: int = 1) -> dict[str, Any]:
    expected = {"task_type": kind, "status": status, "retrieved_data": [0] * wanted}
    return {
        "expected": expected,
        "results_schema": {"type": "array", "items": {"type": of}} if of else {"type": "null"},
    }


@pytest.mark.parametrize(
    ("answer", "expected", "status", "data"),
    [
        ("15213", rule(), "SUCCESS", ["15213"]),
        ("6", rule(of="number"), "SUCCESS", [6]),
        ("true", rule(of="boolean"), "SUCCESS", [True]),
        ('["a", "b"]', rule(wanted=2), "SUCCESS", ["a", "b"]),
        ("N/A", rule(), "NOT_FOUND_ERROR", None),
        ("n/a", rule(status="PERMISSION_DENIED_ERROR"), "PERMISSION_DENIED_ERROR", None),
        (None, rule(status="NOT_FOUND_ERROR", of=None), "UNKNOWN_ERROR", None),
        (None, rule("mutate", of=None), "SUCCESS", None),
        ("done", rule("navigate", of=None), "SUCCESS", None),
        (None, rule("mutate", "ACTION_NOT_ALLOWED_ERROR", of=None), "SUCCESS", None),
    ],
)
def test_an_answer_that_can_be_graded_is_put_into_the_form(
    answer: str | None, expected: dict[str, Any], status: str, data: list[Any] | None
) -> None:
    form, why = _response(answer, expected)
    assert form is not None and (form["status"], form["retrieved_data"], why) == (status, data, "")
    assert form["task_type"] == expected["expected"]["task_type"].upper()


@pytest.mark.parametrize(
    ("answer", "expected", "why"),
    [
        ("There are 6.", rule(of="number"), "a number"),
        ("No, it is open", rule(of="boolean"), "true or false"),
        ("Pittsburgh, 15231", rule(of="object"), "records"),
        ("a; b", rule(wanted=2), "several values"),
        ("there is none", rule(status="NOT_FOUND_ERROR", of=None), "an error"),
        ("this may not be done", rule("mutate", "ACTION_NOT_ALLOWED_ERROR", of=None), "an error"),
    ],
)
def test_a_sentence_that_cannot_say_it_is_not_covered(answer: str, expected: dict[str, Any], why: str) -> None:
    form, told = _response(answer, expected)
    assert form is None and told.startswith("not covered: ") and why in told
