"""The draw of a big suite: the same cases in every process, and all of them with --whole-suites."""

from __future__ import annotations

import pytest

from tests import trust


def test_a_draw_is_the_same_each_time_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "whole_suites", False)
    cases = list(range(1000))
    assert trust.drawn(cases, 10, "a") == trust.drawn(cases, 10, "a") == sorted(trust.drawn(cases, 10, "a"))
    assert trust.drawn(cases, 10, "a") != trust.drawn(cases, 10, "b")


def test_whole_suites_are_not_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "whole_suites", True)
    assert trust.drawn([3, 1, 2], 1, "a") == [3, 1, 2]
