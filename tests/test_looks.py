"""Every second look at evaluation tasks is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.looks import LEDGER, Look, open_look, read_looks
from r2v.errors import UsageError

FIRST = Look(world="desk", first=100, count=50, study="one", commit="c", date="2026-01-01")


def test_a_study_goes_on_with_its_own_tasks_and_takes_those_that_nobody_has_read(tmp_path: Path) -> None:
    ledger = tmp_path / "looks.jsonl"
    beside = [replace(FIRST, study="before", first=50), replace(FIRST, study="behind", first=150)]
    for look in (FIRST, FIRST, *beside, replace(FIRST, study="elsewhere", world="babyai")):
        open_look(ledger, look)
    assert [look.study for look in read_looks(ledger)] == ["one", "before", "behind", "elsewhere"]


@pytest.mark.parametrize(("first", "count"), [(100, 50), (149, 1), (51, 50), (90, 100), (110, 10)])
def test_a_second_look_is_refused_or_says_why(tmp_path: Path, first: int, count: int) -> None:
    ledger = tmp_path / "looks.jsonl"
    open_look(ledger, FIRST)
    second = replace(FIRST, study="two", first=first, count=count)
    with pytest.raises(UsageError, match=rf"desk tasks {first} to .*: one read 100 to 149 .* --again"):
        open_look(ledger, second)
    assert read_looks(ledger) == [FIRST]
    explained = replace(second, again="another student")
    open_look(ledger, explained)
    assert read_looks(ledger) == [FIRST, explained]


def test_another_range_of_the_same_study_is_a_look_of_its_own(tmp_path: Path) -> None:
    open_look(tmp_path / "looks.jsonl", FIRST)
    with pytest.raises(UsageError, match="one read 100 to 149"):
        open_look(tmp_path / "looks.jsonl", replace(FIRST, count=60))


def test_the_ledger_of_this_project_says_why_where_it_looked_twice() -> None:
    looks = read_looks(LEDGER)
    for at, look in enumerate(looks):
        assert look.again or not any(look.overlaps(earlier) for earlier in looks[:at]), look
