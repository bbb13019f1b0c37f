"""The effect of a hit on a text, category by category."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from r2v.config import INJECTION_FAMILIES, MODES, PerturbationMode
from r2v.envs.base import Surface
from r2v.envs.desk import Desk
from r2v.perturb.categories.partial_observation import MARKER
from r2v.perturb.categories.schema_drift import ANNOUNCEMENT
from r2v.perturb.categories.tool_error import ERRORS
from r2v.perturb.category import Change, Scene, category
from r2v.perturb.schedule import GENERIC

PAGE = "\n".join(["header", *(f"row {100 + n}: item {n} of order {n * 7}" for n in range(9))])
DESK_GOAL = 'close this record and finish : {"goal":"close","kind":"ticket","name":"ann lee","team":"net","item":"vpn"}'

DRIFTS = MODES["schema_drift"]


def _scene(
    text: str = PAGE,
    *,
    number: int = 0,
    severity: float = 0.5,
    mode: PerturbationMode = "explicit_transient",
    previous: str | None = None,
    goal: str = "open row 104",
    surface: Surface = GENERIC,
) -> Scene:
    return Scene(
        text=text,
        previous=previous,
        goal=goal,
        severity=severity,
        mode=mode,
        key=("test", number),
        surface=surface,
        families=INJECTION_FAMILIES,
    )


def _altered(name: str, scene: Scene) -> Change:
    change = category(name).alter(scene)
    assert change is not None
    return change


@pytest.mark.parametrize(
    "lines, severity, kept",
    [(10, 0.5, 5), (7, 0.5, 4), (2, 0.5, 1), (10, 0.7, 3), (10, 0.9, 1), (3, 0.1, 3), (10, 1.0, 0)],
)
def test_partial_observation_keeps_the_first_lines(lines: int, severity: float, kept: int) -> None:
    page = [f"line {n}" for n in range(lines)]
    change = category("partial_observation").alter(_scene("\n".join(page), severity=severity))
    if kept == lines:
        assert change is None
    else:
        assert change is not None
        assert change.text.split("\n") == [*page[:kept], MARKER]


@pytest.mark.parametrize("severity", [0.1, 0.5, 0.9])
def test_implicitly_each_line_is_lost_with_the_severity_as_its_probability(severity: float) -> None:
    page = [f"line {n}" for n in range(20)]
    losses = []
    for number in range(500):
        scene = _scene("\n".join(page), number=number, severity=severity, mode="implicit_transient")
        change = category("partial_observation").alter(scene)
        left = change.text.split("\n") if change else page
        assert left == [line for line in page if line in left], "no marker, and the order stays"
        assert change is None or change.params == {"lost": 20 - len(left)}
        losses.append(len(page) - len(left))
    sigma = (severity * (1 - severity) / 10_000) ** 0.5
    assert abs(sum(losses) / 10_000 - severity) < 4 * sigma
    (first,) = _altered("partial_observation", _scene(severity=1.0, mode="implicit_transient")).text.split("\n")
    assert first == "header"


def test_an_announced_drift_says_so_on_its_pages() -> None:
    told = {mode: _altered("schema_drift", _scene('{"id":"r1"}', severity=1.0, mode=mode)) for mode in DRIFTS}
    silent, announced = (told[mode].text.split("\n") for mode in DRIFTS)
    assert announced == [*silent, ANNOUNCEMENT] == ['{"id_v2":"r1"}', ANNOUNCEMENT]
    assert told[DRIFTS[0]].renaming == told[DRIFTS[1]].renaming


@pytest.mark.parametrize("name", ["partial_observation", "distractor", "prompt_injection", "shuffled_dom"])
def test_a_page_of_one_line_is_not_eligible(name: str) -> None:
    assert category(name).alter(_scene("only line 1")) is None


@pytest.mark.parametrize("number", range(20))
def test_shuffling_keeps_the_header_and_the_rows(number: int) -> None:
    rows = _altered("shuffled_dom", _scene(number=number)).text.split("\n")
    assert rows[0] == "header"
    assert Counter(rows) == Counter(PAGE.split("\n"))
    ids = [row.split(":")[0] for row in rows[1:]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("number", range(20))
def test_two_rows_change_places(number: int) -> None:
    assert _altered("shuffled_dom", _scene("header\none\ntwo", number=number)).text == "header\ntwo\none"


def test_equal_rows_cannot_change_places() -> None:
    assert category("shuffled_dom").alter(_scene("header\none\none\none")) is None


@pytest.mark.parametrize("goal", ["oo", "aa ee", "\u00e9\u00e9"])
def test_every_slip_changes_its_word(goal: str) -> None:
    for number in range(50):
        words = _altered("goal_typo", _scene(goal, number=number, severity=1.0)).text.split()
        assert all(told != said for told, said in zip(words, goal.split(), strict=True))


def test_shuffling_does_shuffle() -> None:
    assert len({_altered("shuffled_dom", _scene(number=n)).text for n in range(20)}) > 15


@pytest.mark.parametrize("severity, count", [(0.0, 1), (0.5, 3), (1.0, 4)])
def test_distractors_are_fresh_and_stand_among_the_rows(severity: float, count: int) -> None:
    places: set[int] = set()
    for number in range(20):
        lines = _altered("distractor", _scene(number=number, severity=severity)).text.split("\n")
        assert lines[0] == "header"
        assert [line for line in lines if line in PAGE.split("\n")] == PAGE.split("\n")
        planted = [line for line in lines if line not in PAGE.split("\n")]
        assert len(planted) == count
        for line in planted:
            assert not set(re.findall(r"\d+", line)) & set(re.findall(r"\d+", PAGE + "open row 104"))
        places.update(lines.index(line) for line in planted)
    assert len(places) > 5


def test_distractors_on_a_page_without_numbers_come_from_the_bank() -> None:
    lines = _altered("distractor", _scene("header\nno number here")).text.split("\n")
    assert lines[0] == "header"
    assert "no number here" in lines and len(lines) == 5


@pytest.mark.parametrize("surface, goal", [(GENERIC, "open row 104"), (Desk(), DESK_GOAL)])
def test_every_injection_holds_its_canary_and_clean_text_does_not(surface: Surface, goal: str) -> None:
    seen = set()
    for number in range(60):
        change = _altered("prompt_injection", _scene(number=number, surface=surface, goal=goal))
        assert change.canary
        assert change.canary not in PAGE + goal
        planted = [line for line in change.text.split("\n") if line not in PAGE.split("\n")]
        assert len(planted) == 1 and change.canary in planted[0]
        assert change.text.split("\n")[0] == "header"
        seen.add(change.params["family"])
    assert seen == set(INJECTION_FAMILIES)


def test_stale_shows_the_page_before() -> None:
    assert _altered("stale_observation", _scene("new", previous="old")).text == "old"
    assert category("stale_observation").alter(_scene("first")) is None
    assert category("stale_observation").alter(_scene("same", previous="same")) is None


def test_failed_calls_answer_one_error_line() -> None:
    errors = {json.loads(_altered("tool_error", _scene("", number=n)).text)["error"] for n in range(100)}
    assert errors == set(ERRORS)
    timeout = _altered("tool_timeout", _scene(""))
    assert timeout.text == '{"error":"timeout"}'
    assert timeout.seconds == 30.0


def test_latency_leaves_the_text_alone() -> None:
    seconds = [_altered("latency", _scene(number=n, severity=0.5)).seconds for n in range(200)]
    assert _altered("latency", _scene()).text == PAGE
    assert 0 <= min(seconds) < 1 and 9 < max(seconds) <= 10


GOAL = (
    'please open the record "broken vpn of ann" at https://desk.example/list?page=two and set r204 to 17 '
    "days, then call it 'all done' and finish"
)
KEPT = ('"broken vpn of ann"', "https://desk.example/list?page=two", "r204", "17", "'all done'")


@pytest.mark.parametrize("severity", [0.2, 0.5, 1.0])
def test_typing_errors_spare_quotes_numbers_and_addresses(severity: float) -> None:
    slips = set()
    for number in range(100):
        change = _altered("goal_typo", _scene(GOAL, number=number, severity=severity))
        assert all(part in change.text for part in KEPT)
        slips.add(change.params["slips"])
        changed = sum(a != b for a, b in zip(GOAL.split(), change.text.split(), strict=True))
        assert 0 < changed <= change.params["slips"]
    assert len(slips) == 1


def test_nothing_but_quotes_is_not_eligible() -> None:
    assert category("goal_typo").alter(_scene('"all of it" 12 r204')) is None
    assert category("goal_typo").alter(_scene("some words here", severity=0.0)) is None


RECORD = (
    "order [17] of 2026-02-27\nweight 12.5 kg, 3 boxes, 40 EUR, \n"
    '{"record":"asset","id":"204","pieces":"36","due":"2026-03-01"}\nsee /orders/77 and item-9, v1.2.3, r8'
)
IDENTIFIED = ("[17]", '"id":"204"', "/orders/77", "item-9", "v1.2.3", "r8")


def test_wrong_values_keep_their_look_and_identifiers_stay() -> None:
    seen: set[str] = set()
    for number in range(200):
        text = _altered("value_corruption", _scene(RECORD, number=number, severity=0.0)).text
        assert all(part in text for part in IDENTIFIED)
        was, now = RECORD.split(), text.split()
        (changed,) = [(a, b) for a, b in zip(was, now, strict=True) if a != b]
        assert re.sub(r"\d", "0", changed[0]) == re.sub(r"\d", "0", changed[1]) or changed[0].strip(",") in (
            "kg",
            "EUR",
        )
        seen.add(changed[0])
    assert len(seen) >= 6


@pytest.mark.parametrize("severity, wrong", [(0.0, 1), (0.5, 3), (1.0, 6)])
def test_severity_is_the_share_of_values_that_are_wrong(severity: float, wrong: int) -> None:
    change = _altered("value_corruption", _scene(RECORD, severity=severity))
    assert change.params["values"] == wrong


def test_what_the_goal_names_is_never_wrong() -> None:
    for number in range(50):
        text = _altered("value_corruption", _scene(RECORD, number=number, severity=1.0, goal="the one of 12.5")).text
        assert "12.5" in text
    assert category("value_corruption").alter(_scene("no number here")) is None
    assert category("value_corruption").alter(_scene("only 12.5 here", goal="12.5")) is None


@pytest.mark.parametrize("severity, moved", [(0.0, 2), (0.5, 3), (1.0, 6)])
def test_severity_is_the_share_of_identifiers_that_change_places(severity: float, moved: int) -> None:
    page = "\n".join(f"[{number}] button 'b{number}'" for number in range(10, 16))
    change = _altered("renumbered_dom", _scene(page, severity=severity))
    changed = [a != b for a, b in zip(page.split("\n"), change.text.split("\n"), strict=True)]
    assert sum(changed) == moved == len(change.params["identifiers"])
    assert sorted(re.findall(r"\[(\d+)\]", change.text)) == sorted(re.findall(r"\[(\d+)\]", page))
    assert category("renumbered_dom").alter(_scene("[1] link\nno other")) is None


def test_drift_without_a_share_changes_nothing() -> None:
    assert category("schema_drift").alter(_scene('{"id":"r1"}', severity=0.0)) is None
    told = _altered("schema_drift", _scene('{"tool":"get","id":"r1"}', severity=1.0))
    assert told.text == '{"tool":"get","id_v2":"r1"}' and told.params == {"fields": {"id": "id_v2"}}
