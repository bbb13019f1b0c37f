"""Help in groups: the commands of every day at first, each other one in one group."""

from __future__ import annotations

from collections import Counter

import pytest

from r2v.cli.groups import EVERYDAY, GROUPS, _commands
from r2v.cli.main import build_parser, main


def test_every_command_is_listed_once() -> None:
    shown = [action.dest for action in _commands(build_parser())._choices_actions]
    listed = Counter([*EVERYDAY, *(name for _, names in GROUPS.values() for name in names)])
    assert set(listed) == set(shown) and max(listed.values()) == 1 and len(EVERYDAY) <= 15


def test_the_help_lists_the_commands_of_every_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    listed = [line.split()[0] for line in told.splitlines() if line.startswith("    ") and line[4:5].strip()]
    assert listed == list(EVERYDAY) and "r2v help" not in told.partition("commands:")[0]


def test_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list(GROUPS)
    for name, (about, names) in GROUPS.items():
        assert main(["help", name]) == 0
        told = capsys.readouterr().out
        assert told.startswith(about) and all(f"\n  {one}" in told for one in names)
    assert main(["help", "nothing"]) == 2
