"""What was played outlives the process and the attempt that played it, and changes no byte of the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.config import CandidatesConfig, InferenceConfig
from r2v.data.episode import to_line
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault
from r2v.llm.types import ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.blocks import BlockPlayer
from r2v.rollout.cells import CellPlayer, MemoryPlayer
from r2v.rollout.episode_cache import EpisodeCache
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.play_lines import BrokenPlay
from tests.chains import Stage, chain_stage, specs
from tests.rollouts import play_candidates, play_corruptions, roll_out_features
from tests.storage.test_checkpoint import files_of_at_most

CHAIN = ChainBenchmark(num_tasks=10, length=3)
KEY = "0123456789abcdef" * 2


class Killed(Exception):
    """The process ends here."""


def player(on: Stage, store: Path | None, own: str = "stage-1") -> CellPlayer:
    return MemoryPlayer(on.waves) if store is None else BlockPlayer(on.waves, EpisodeCache(store, own), 1000)


def candidates(store: Path | None, own: str = "stage-1", dies_after: int | None = None) -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 0.9, waves=Waves(workers=1, max_conversations=1))
    calls = iter(range(10**6))

    async def score(request: ScoreRequest) -> ScoreReply:
        if next(calls) == dies_after:
            raise Killed
        return ScoreReply(score=0.5)

    states = play_candidates(
        specs(CHAIN, 10),
        on.world,
        on.small,
        on.large,
        [score],
        lambda task_id: 0,
        CandidatesConfig(num_samples=4),
        on.waves,
        player=player(on, store, own),
    )
    return [to_line(state) for state in states]


def features(store: Path | None, own: str = "stage-1") -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 0.9)
    rows = roll_out_features(
        specs(CHAIN, 10),
        on.world,
        on.small,
        on.large,
        FeatureExtractor(InferenceConfig()),
        on.waves,
        player=player(on, store, own),
    )
    return [to_line(row) for row in rows]


def corruptions(store: Path | None, own: str = "stage-1") -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 1.0)
    episodes, records = play_corruptions(
        specs(CHAIN, 10), on.world, on.large, on.waves, per_episode=4, discount=0.7, player=player(on, store, own)
    )
    return [*map(to_line, episodes), *map(to_line, records)]


@pytest.mark.parametrize("play", [candidates, features, corruptions])
def test_taken_from_the_cache_every_record_is_the_same(
    play: Callable[..., list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = play(None)
    assert play(tmp_path) == plain
    (path,) = tmp_path.glob("stage-1/*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 10
    assert play(tmp_path) == plain and path.read_bytes() == b"".join(lines), "nothing is played again"
    path.write_bytes(b"".join(lines[:4]))
    with caplog.at_level("INFO"):
        assert play(tmp_path) == plain
    assert any("resuming: 4 plays of this attempt are already there" in message for message in caplog.messages)
    assert sorted(path.read_bytes().split(b"\n")) == sorted(b"".join(lines).split(b"\n"))


@pytest.mark.parametrize("play", [candidates, features, corruptions])
def test_another_attempt_plays_nothing_that_was_played(play: Callable[..., list[str]], tmp_path: Path) -> None:
    assert play(tmp_path, "stage-2") == play(tmp_path, "stage-1")
    assert not list(tmp_path.glob("stage-1/*.jsonl"))
    shutil.rmtree(tmp_path / "stage-2")
    assert play(tmp_path, "stage-1") == play(None) and list(tmp_path.glob("stage-1/*.jsonl"))


def test_one_made_anew_reads_nobody_elses_plays(tmp_path: Path) -> None:
    features(tmp_path)
    assert len(EpisodeCache(tmp_path, "stage-2")._known()) == 10
    assert not EpisodeCache(tmp_path, "stage-2", alone=True)._known()


def test_a_kill_loses_only_the_plays_in_flight(tmp_path: Path) -> None:
    plain, kept = candidates(None), [0]
    for _ in range(50):
        try:
            assert candidates(tmp_path, dies_after=16) == plain
            break
        except Killed:
            kept.append(sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*/*.jsonl")))
            assert kept[-1] > kept[-2], "a job that is always too short still ends"
    assert len(kept) > 2


@pytest.mark.parametrize("how", ["torn", "flipped", "another's", "empty line", "binary"])
def test_a_damaged_line_is_a_play_that_is_played_again(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = features(tmp_path)
    (path,) = tmp_path.glob("stage-1/*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "torn": [*lines[:9], lines[9][:-30]],
        "flipped": [lines[0].replace(b"slm", b"sln", 1), *lines[1:]],
        "another's": [b'{"key": 1}\n', *lines[1:]],
        "empty line": [*lines[:5], b"\n", *lines[6:]],
        "binary": [b"\xff\x00" * 40 + b"}\n", *lines[1:]],
    }[how]
    path.write_bytes(b"".join(damaged))
    with caplog.at_level("WARNING"):
        assert features(tmp_path) == plain
    warned = [message for message in caplog.messages if "damaged" in message]
    assert len(warned) == (0 if how == "empty line" else 1) and all(str(path) in message for message in warned)
    assert features(tmp_path) == plain


def test_a_line_that_changes_while_it_is_known_is_played_again(tmp_path: Path) -> None:
    cache = EpisodeCache(tmp_path, "stage-1")
    cache.add("some", KEY, [CandidatesConfig()])
    cache.close()
    assert cache.read(KEY, (CandidatesConfig,)) == [CandidatesConfig()]
    assert cache.read(KEY, (InferenceConfig,)) is None, "records of another kind are of another R2V"
    cache.add("some", KEY, [CandidatesConfig()])
    path = tmp_path / "stage-1" / "some.jsonl"
    path.write_bytes(path.read_bytes().replace(b"num_samples", b"num_sampler"))
    assert cache.read(KEY, (CandidatesConfig,)) is None and KEY not in cache


def test_what_another_process_adds_is_seen_after_a_refresh(tmp_path: Path) -> None:
    one, other = EpisodeCache(tmp_path, "stage-1"), EpisodeCache(tmp_path, "stage-1")
    assert KEY not in one
    other.add("some", KEY, [CandidatesConfig()])
    assert KEY not in one
    one.refresh()
    assert one.read(KEY, (CandidatesConfig,)) == [CandidatesConfig()]
    other.close()


def test_a_fault_of_the_world_counts_within_its_attempt_only(tmp_path: Path) -> None:
    own = EpisodeCache(tmp_path, "stage-1")
    own.add("some", KEY, [BrokenPlay(reason="gone")])
    own.add("some", KEY[::-1], [CandidatesConfig()])
    own.close()
    assert KEY in EpisodeCache(tmp_path, "stage-1") and KEY not in EpisodeCache(tmp_path, "stage-2")
    own.forget_faults()
    assert KEY not in own and KEY[::-1] in own


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with files_of_at_most(2_000), pytest.raises(EnvironmentFault, match=r"cannot write .*\.jsonl"):
        features(tmp_path)
