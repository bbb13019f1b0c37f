"""Players: how many processes play an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from r2v.rollout.players import Players
from r2v.storage.lease import Owner


def test_the_living_are_counted_and_the_dead_taken_away(tmp_path: Path) -> None:
    dead = tmp_path / "player-dead.lease"
    dead.mkdir()
    (dead / replace(Owner.here(), started="1").filename).touch()
    with Players(tmp_path) as one:
        assert one.count() == 1 and not dead.exists()
        with Players(tmp_path) as other:
            assert (one.count(), other.count()) == (2, 2)
        assert one.count() == 1
    assert not list(tmp_path.iterdir())
