"""Episodes outlive their process and their attempt, and change no byte of the result."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.config import CandidatesConfig, InferenceConfig
from r2v.data.episode import Episode, to_line
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault
from r2v.llm.types import ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.episode_cache import (
    BrokenPlay,
    EpisodeCache,
    PlayFile,
    fault_of,
    forget_finished,
    header_of,
    lines_from,
    play_line,
    publish_plays,
    raw_records,
    records_of,
)
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.work_queue import BlockPlayer, Cell
from r2v.storage.compression import line_at
from tests.chains import Stage, chain_stage, specs
from tests.rollouts import MemoryPlayer, Player, play_candidates, play_corruptions, roll_out_features
from tests.storage.test_checkpoint import files_of_at_most

CHAIN = ChainBenchmark(num_tasks=10, length=3)
KEY = "0123456789abcdef" * 2


class Killed(Exception):
    """The process ends here."""


def player(on: Stage, store: Path | None, own: str = "stage-1") -> Player:
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
    assert any("attempt resumed: cached_plays=4" in message for message in caplog.messages)
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


# A line of a play is whole or counts for nothing, whichever process wrote it.

KINDS = (CandidatesConfig,)


def test_what_is_written_is_read() -> None:
    line = play_line(KEY, [CandidatesConfig(), CandidatesConfig(num_samples=3)])
    header = header_of(line)
    assert header is not None and (header.key, header.fault) == (KEY, False)
    assert records_of(raw_records(line), KINDS) == [CandidatesConfig(), CandidatesConfig(num_samples=3)]


def test_a_fault_of_the_world_is_told_by_the_header() -> None:
    line = play_line(KEY, [BrokenPlay(reason="the site is gone")])
    header = header_of(line)
    assert header is not None and header.fault
    assert fault_of(records_of(raw_records(line), KINDS)) == "the site is gone" and fault_of([]) is None


@pytest.mark.parametrize("how", ["torn", "flipped", "empty", "binary", "another's", "two in one"])
def test_a_line_that_is_not_as_it_was_written_is_none(how: str) -> None:
    line = play_line(KEY, [CandidatesConfig()])
    damaged = {
        "torn": line[:-30],
        "flipped": line.replace(b"num_samples", b"num_sampler"),
        "empty": b"\n",
        "binary": b"\xff\x00" * 40 + b"}\n",
        "another's": b'{"key": 1}\n',
        "two in one": line[:-1] + line,
    }[how]
    assert header_of(damaged) is None
    with pytest.raises(ValueError, match="hash"):
        raw_records(damaged)


@pytest.mark.parametrize("records", [b"7", b'[["Other",{}]]', b'[["CandidatesConfig",{"other":1}]]', b"[[1]]", b"{}}"])
def test_a_line_of_another_r2v_whose_hash_holds_is_refused(records: bytes) -> None:
    text = b'"key":"%s","fault":false,"records":%s' % (KEY.encode(), records)
    line = b'{"sha256":"%s",%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)
    assert header_of(line) is not None
    with pytest.raises((ValueError, TypeError, KeyError)):
        records_of(raw_records(line), KINDS)


def test_a_file_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(play_line(KEY, [CandidatesConfig()]) + b'{"sha256":"12')
    file = PlayFile(path)
    begin, end = file.append(KEY[::-1], [CandidatesConfig()])
    file.close()
    assert header_of(line_at(path, begin)) is not None and end == path.stat().st_size
    assert [header_of(line) is not None for _, line in lines_from(path)] == [True, False, True]


def test_a_line_that_the_disk_takes_half_of_is_no_play(tmp_path: Path) -> None:
    file = PlayFile(tmp_path / "some.jsonl")
    with files_of_at_most(100), pytest.raises(EnvironmentFault, match=r"cannot write .*some\.jsonl"):
        file.append(KEY, [CandidatesConfig()])
    assert [header_of(line) for _, line in lines_from(file.path)] == [None]


# Once an artifact is finished its episodes are in its own files; the cache notes their positions, and keeps the rest.

NAME = "evaluate-0123456789abcdef"
FAULT, SMALL = "f" * 32, "e" * 32


@pytest.fixture
def finished(tmp_path: Path) -> tuple[Cell, list[Episode]]:
    """Make a project whose attempt has played a cell, written it as its file, and published it."""
    on = chain_stage(ChainBenchmark(num_tasks=6, length=2), (0.7, None), 0.9)

    async def play(spec: EpisodeSpec) -> list[Episode]:
        return [await on.world.start(spec).finish(on.small, on.waves)]

    cell = Cell(what="slm_only", specs=specs(ChainBenchmark(num_tasks=6, length=2), 6), play=play, kinds=(Episode,))
    cache = EpisodeCache(tmp_path / "outputs/.episodes", NAME)
    player = BlockPlayer(on.waves, cache, 1000)
    player.play([cell])
    cache.add("evaluation-0000", FAULT, [BrokenPlay(reason="gone")])
    cache.add("evaluation-0000", SMALL, [BrokenPlay(reason="x"), BrokenPlay(reason="y")])
    cache.close()
    episodes = [episode for (episode,) in player.records(cell)]
    artifact = tmp_path / "outputs/.artifacts" / NAME / "episodes"
    artifact.mkdir(parents=True)
    (artifact / "slm_only.jsonl").write_text("".join(to_line(episode) + "\n" for episode in reversed(episodes)))
    publish_plays(tmp_path, NAME, ["episodes/slm_only.jsonl", "setup.json"])
    return cell, episodes


def read(root: Path, cell: Cell, own: str = "evaluate-ffffffffffffffff") -> list[Episode | None]:
    cache = EpisodeCache(root / "outputs/.episodes", own)
    found = [cache.read(key, cell.kinds) for key in cell.play_keys()]
    return [None if records is None else records[0] for records in found]


def test_every_episode_is_kept_once_and_found_by_anybody(tmp_path: Path, finished: tuple[Cell, list[Episode]]) -> None:
    cell, episodes = finished
    folder = tmp_path / "outputs/.episodes" / NAME
    assert sorted(path.name for path in folder.iterdir()) == [".r2v", "published.json"], (
        "what a fault ended is kept for nobody"
    )
    assert read(tmp_path, cell) == episodes == read(tmp_path, cell, NAME)


def test_publishing_again_changes_nothing(tmp_path: Path, finished: tuple[Cell, list[Episode]]) -> None:
    folder = tmp_path / "outputs/.episodes" / NAME
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    publish_plays(tmp_path, NAME, ["episodes/slm_only.jsonl"])
    cache = EpisodeCache(tmp_path / "outputs/.episodes", NAME)
    key = finished[0].play_keys()[0]
    cache.add("again", key, [finished[1][0]])
    cache.close()
    publish_plays(tmp_path, NAME, ["episodes/slm_only.jsonl"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("lies_as", ["a link", "a folder without a marker"])
def test_files_in_a_folder_that_r2v_did_not_mark_are_kept(
    tmp_path: Path, lies_as: str, finished: tuple[Cell, list[Episode]]
) -> None:
    other, mine = "evaluate-fedcba9876543210", tmp_path / "outputs/.episodes/evaluate-fedcba9876543210"
    mine = tmp_path / "home" if lies_as == "a link" else mine
    mine.mkdir()
    (mine / "measured.jsonl").write_text("{}\n")
    if lies_as == "a link":
        (tmp_path / "outputs/.episodes" / other).symlink_to(mine)
    publish_plays(tmp_path, other, [])
    EpisodeCache(tmp_path / "outputs/.episodes", other).forget()
    (tmp_path / "outputs/.artifacts" / other).mkdir()
    (tmp_path / "outputs/.artifacts" / other / "artifact.json").write_text("{}")
    forget_finished(tmp_path, other)
    (aside,) = (tmp_path / "outputs/.episodes").glob("*.quarantine")
    assert (aside / "measured.jsonl").read_text() == "{}\n"


def test_an_episode_of_an_altered_artifact_is_as_good_as_not_played(
    tmp_path: Path, finished: tuple[Cell, list[Episode]], caplog: pytest.LogCaptureFixture
) -> None:
    cell, episodes = finished
    path = tmp_path / "outputs/.artifacts" / NAME / "episodes/slm_only.jsonl"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"success":true', b'"success":true ', 1))
    with caplog.at_level("WARNING"):
        found = read(tmp_path, cell)
    assert None in found and all(one in (None, two) for one, two in zip(found, episodes, strict=True))
    assert sum("not what was published" in message for message in caplog.messages) == 1
    path.unlink()
    assert read(tmp_path, cell) == [None] * 6


def test_a_damaged_list_is_named_and_is_none(
    tmp_path: Path, finished: tuple[Cell, list[Episode]], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "outputs/.episodes" / NAME / "published.json"
    path.write_bytes(path.read_bytes().replace(b"slm_only", b"llm_only", 1))
    with caplog.at_level("WARNING"):
        assert read(tmp_path, finished[0]) == [None] * 6
    assert any("published.json" in message for message in caplog.messages)
