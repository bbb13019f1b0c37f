"""Occurrence of faults: at occasions, by probability, where `on` says; each of them has its test."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import openai
import pytest

from r2v.emulator import FAULT_POINTS, Emulator, Fault, faults, ledger
from r2v.errors import UsageError
from tests.emulator.clients import body, openai_client, run_openai


def test_every_fault_in_the_table_has_a_test_with_the_official_clients() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_fault_*.py"))
    assert len(FAULT_POINTS) == 59
    assert [name for name in FAULT_POINTS if not re.search(f'"{name}"', source)] == []


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(faults).failed == doctest.testmod(ledger).failed == 0


def test_probability_hits_the_same_occasions_in_every_run_of_a_seed() -> None:
    def hits(seed: int) -> list[str]:
        with Emulator(faults=[Fault("line_500", probability=0.3)], seed=seed) as emulator:
            return [one["custom_id"] for one in run_openai(openai_client(emulator), 60)[2]]

    assert hits(1) == hits(1) != hits(2)
    assert 5 < len(hits(1)) < 35


def test_on_narrows_a_fault_to_its_calls() -> None:
    with Emulator(faults=[Fault("500", on="poll", at=2)]) as emulator:
        client = openai_client(emulator)
        client.chat.completions.create(**body("openai"))
        with pytest.raises(openai.InternalServerError):
            run_openai(client)
        assert emulator.ledger().fired == {"500/poll@2": [2]}
        run_openai(client)


@pytest.mark.parametrize("text", ["503", "500/create@1,3", "line_500:0.25", "line_429/anthropic.create@2"])
def test_the_command_line_spells_what_it_reads(text: str) -> None:
    assert Fault.parse(text).identity == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("line_50", "did you mean line_500"),
        ("500@0", "count from 1"),
        ("500:1.5", "0 to 1"),
        ("500@x", "allowed: NAME"),
        ("500/poll@1:0.5", "allowed: NAME"),
        ("500/pol", "did you mean poll"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_a_line(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        Fault.parse(text)
