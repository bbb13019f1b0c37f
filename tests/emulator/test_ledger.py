"""A ledger outlives a killed emulator, and a file that is no ledger is not touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.emulator.ledger import Bill, Ledger, read_ledger, turn_of
from r2v.errors import InputError
from tests.paid import paid_bodies, paid_ids

BILL = Bill(
    provider="openai",
    mode="batch",
    batch="b1",
    custom_id="run-talk-0-0",
    model="m",
    body_sha256="0" * 64,
    tokens_in=3,
    tokens_out=2,
)


@pytest.mark.parametrize("kept", range(1, 40, 3))
def test_half_a_line_of_a_killed_emulator_is_cut_off_and_the_rest_kept(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.bill([BILL])
    whole, witness = path.read_bytes(), path.with_name("ledger.jsonl.witness")
    synced = witness.read_bytes()
    ledger.bill([BILL])
    ledger.close()
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    witness.write_bytes(synced)  # it was killed while it wrote the line
    Ledger(path).close()
    assert path.read_bytes() == whole and read_ledger(path).bills == (BILL,)


@pytest.mark.parametrize(
    "content",
    [
        b"notes without a newline",
        b"[1, 2]\n",
        b"[1, 2]",
        b"\xff\x00\n",
        b'{"event":"gift"}\n',
        b'{"a":1}\n{"event":"bi',
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"notes\.txt.*of a billing ledger.*name another file"):
        Ledger(path)
    assert path.read_bytes() == content


def test_a_ledger_says_what_was_paid_for_booked_back_fired_and_leaked_however_often_it_is_opened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "ledger.jsonl"
    cancelled = replace(BILL, custom_id="run-talk-1-0", body_sha256="1" * 64)
    unnamed, never_there = replace(BILL, batch="b2", custom_id=None), replace(BILL, batch="b3")
    ledger = Ledger(path)
    ledger.bill([BILL, cancelled])
    ledger.bill([unnamed, never_there])
    ledger.refund("b1", ["run-talk-1-0"])
    ledger.void("b3")
    ledger.fault("late", 3)
    ledger.fault("late", 5)
    for key in (True, False):
        ledger.leak("/v1", key)
    ledger.close()
    whole = path.read_bytes()
    Ledger(path).close()
    assert path.read_bytes() == whole and len(whole.splitlines()) == 10
    said = read_ledger(path)
    assert said.bills == (BILL, unnamed) and said.fired == {"late": [3, 5]} and said.leaks == 1
    assert said.paid() == {("run", "talk", 0): 1} and paid_ids(said) == {"run-talk-0-0": 1}
    assert paid_bodies(said) == {"0" * 64: 2}


@pytest.mark.parametrize("custom_id", [None, "", "talk", "run-talk-0", "run-talk-0-0\n", "run-talk-x-0", "-talk-0-0"])
def test_what_is_no_id_of_ours_is_no_turn(custom_id: str | None) -> None:
    assert turn_of(custom_id) is None and turn_of("ab12-pair-3-7-0") == ("ab12", "pair-3", 7)
