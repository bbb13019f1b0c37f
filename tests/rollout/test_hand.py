"""The hand: what is held until its plays have ended."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from r2v.llm.waves import Waves
from r2v.rollout.episode_cache import EpisodeCache
from r2v.rollout.hand import Hand
from r2v.storage.lease import holder

A, B = "0" * 32, "1" * 32


def test_a_block_is_given_back_with_its_last_play(tmp_path: Path) -> None:
    path = tmp_path / "block.lease"
    with Hand(EpisodeCache(tmp_path, "own")) as hand:
        assert hand.take("block", path) and not Hand(EpisodeCache(tmp_path, "own")).take("block", path)
        hand.hold("block", [A, B])
        hand.end("block", A)
        assert holder(path) is not None and hand.plays == 1
        hand.end("block", B)
        assert holder(path) is None and hand.plays == 0
        assert hand.take("block", path)
        hand.hold("block", [])
        assert holder(path) is None, "somebody else has played all of it"


def test_what_ends_the_run_gives_everything_back(tmp_path: Path) -> None:
    paths = [tmp_path / "one.lease", tmp_path / "two.lease"]
    with pytest.raises(KeyError), Hand(EpisodeCache(tmp_path, "own")) as hand:
        for path in paths:
            hand.take(path.stem, path)
        hand.hold("one", [A])
        raise KeyError
    assert [holder(path) for path in paths] == [None, None]


def test_who_waits_goes_on_when_a_play_ends(tmp_path: Path) -> None:
    waves, order = Waves(workers=1), list[str]()
    with Hand(EpisodeCache(tmp_path, "own")) as hand:
        hand.take("block", tmp_path / "block.lease")
        hand.hold("block", [A, B])

        async def waiting() -> None:
            await hand.wait(waves)
            order.append("went on")

        async def playing() -> None:
            await waves.world(int)
            order.append("ended")
            hand.end("block", A)

        waves.run([waiting, partial(playing), waiting])
    assert order == ["ended", "went on", "went on"]
