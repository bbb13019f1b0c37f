"""What finished tasks came to outlives the process that played them, and changes no byte of the result."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from r2v.config import CandidatesConfig, InferenceConfig
from r2v.data.episode import Episode, to_line
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EnvironmentFault
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.candidate_rollout import play_candidates
from r2v.rollout.corruption_rollout import play_corruptions
from r2v.rollout.feature_rollout import roll_out_features
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.task_journal import TASK_JOURNAL, TaskJournal, play_all
from tests.chains import chain_stage, specs
from tests.storage.test_checkpoint import files_of_at_most

CHAIN = ChainBenchmark(num_tasks=10, length=3)


class Killed(Exception):
    """The process ends here."""


def candidates(journal: Path | None, dies_after: int | None = None) -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 0.9, waves=Waves(workers=1, max_conversations=1))
    calls = iter(range(10**6))

    async def score(request: ScoreRequest) -> float:
        if next(calls) == dies_after:
            raise Killed
        return 0.5

    states = play_candidates(
        specs(CHAIN, 10),
        on.world,
        on.small,
        on.large,
        [score],
        lambda task_id: 0,
        CandidatesConfig(num_samples=4),
        on.waves,
        journal=None if journal is None else TaskJournal(journal),
    )
    return [to_line(state) for state in states]


def features(journal: Path | None) -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 0.9)
    return [
        to_line(row)
        for row in roll_out_features(
            specs(CHAIN, 10),
            on.world,
            on.small,
            on.large,
            FeatureExtractor(InferenceConfig()),
            30.0,
            on.waves,
            journal=None if journal is None else TaskJournal(journal),
        )
    ]


def corruptions(journal: Path | None) -> list[str]:
    on = chain_stage(CHAIN, (0.7, None), 1.0)
    episodes, records = play_corruptions(
        specs(CHAIN, 10),
        on.world,
        on.large,
        on.waves,
        per_episode=4,
        discount=0.7,
        journal=None if journal is None else TaskJournal(journal),
    )
    return [*map(to_line, episodes), *map(to_line, records)]


@pytest.mark.parametrize("play", [candidates, features, corruptions])
def test_taken_from_the_journal_every_record_is_the_same(
    play: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, path = play(None), tmp_path / TASK_JOURNAL
    assert play(path) == plain
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 10
    assert play(path) == plain and path.read_bytes() == b"".join(lines), "nothing is played again"
    path.write_bytes(b"".join(lines[:4]))
    with caplog.at_level("INFO"):
        assert play(path) == plain
    assert any("resuming: 4 tasks of this attempt are already played" in message for message in caplog.messages)
    assert sorted(path.read_bytes().split(b"\n")) == sorted(b"".join(lines).split(b"\n") + [b""])


def test_a_kill_loses_only_the_tasks_in_flight(tmp_path: Path) -> None:
    path, plain, kept = tmp_path / TASK_JOURNAL, candidates(None), [0]
    for _ in range(50):
        try:
            assert candidates(path, dies_after=16) == plain
            break
        except Killed:
            kept.append(path.read_bytes().count(b"\n"))
            assert kept[-1] > kept[-2], "a job that is always too short still ends"
    assert len(kept) > 2


@pytest.mark.parametrize("kind", ["torn", "flipped", "another's", "empty line", "binary"])
def test_a_damaged_line_is_a_task_that_is_played_again(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / TASK_JOURNAL
    plain = features(path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "torn": [*lines[:9], lines[9][:-30]],
        "flipped": [lines[0].replace(b"slm", b"sln", 1), *lines[1:]],
        "another's": [b'{"key": 1}\n', *lines[1:]],
        "empty line": [*lines[:5], b"\n", *lines[6:]],
        "binary": [b"\xff\x00" * 40 + b"}\n", *lines[1:]],
    }[kind]
    path.write_bytes(b"".join(damaged))
    with caplog.at_level("WARNING"):
        assert features(path) == plain == features(path)
    warned = [message for message in caplog.messages if "damaged" in message]
    assert len(warned) == (0 if kind == "empty line" else 2) and all(str(path) in message for message in warned)


STRANGE = {
    "no list": (b"null", "damaged"),
    "an object": (b"{}", "damaged"),
    "an object of two": (b'{"a":1,"b":2}', "another R2V"),
    "empty": (b"[]", "damaged"),
    "no records": (b'["a task"]', "damaged"),
    "a key of another kind": (b"[[1],[]]", "damaged"),
    "no text": (b'["\xff",[]]', "damaged"),
    "too deep": (b"[" * 100_000, "damaged"),
    "records that are none": (b'["a task",7]', "another R2V"),
    "records without a kind": (b'["a task",[["x"]]]', "another R2V"),
    "a kind that is not known": (b'["a task",[["Other",{}]]]', "another R2V"),
    "fields that are not known": (b'["a task",[["CandidatesConfig",{"other":1}]]]', "another R2V"),
    "fields that are none": (b'["a task",[["CandidatesConfig",7]]]', "another R2V"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_line_whose_hash_holds_and_that_is_none_of_ours_is_passed_over(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What an earlier R2V wrote, or a stranger."""
    text, why = STRANGE[kind]
    journal = TaskJournal(tmp_path / TASK_JOURNAL)
    line = b'{"sha256":"%s","task":%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)
    journal.path.write_bytes(line)
    with caplog.at_level("WARNING"):
        for key in ("a task", "a"):
            assert journal.read(key, (CandidatesConfig,)) is None
    (warned,) = caplog.messages
    assert why in warned and str(journal.path) in warned
    journal.add("a task", [CandidatesConfig()])
    journal.close()
    assert TaskJournal(journal.path).read("a task", (CandidatesConfig,)) == [CandidatesConfig()]


def test_plays_of_one_task_are_told_apart_by_their_scope(tmp_path: Path) -> None:
    """A threshold, for one."""
    on, journal = chain_stage(CHAIN, (0.7, None), 0.9), TaskJournal(tmp_path / TASK_JOURNAL)
    played: list[float] = []

    def at(tau: float) -> list[Any]:
        async def play(spec: EpisodeSpec) -> list[Episode]:
            played.append(tau)
            return [await on.world.start(spec).finish(on.small, on.waves)]

        return play_all(on.waves, specs(CHAIN, 3), play, journal, (Episode,), scope=(tau,))

    assert at(0.1) == at(0.2) == at(0.1) == at(0.2) and played == [0.1] * 3 + [0.2] * 3
    journal.remove()
    assert not journal.path.exists() and at(0.1) and played[6:] == [0.1] * 3


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with files_of_at_most(2_000), pytest.raises(EnvironmentFault, match="cannot write .*checkpoint-tasks"):
        features(tmp_path / TASK_JOURNAL)


def test_a_line_that_the_disk_takes_half_of_is_no_finished_task(tmp_path: Path) -> None:
    journal = TaskJournal(tmp_path / TASK_JOURNAL)
    with files_of_at_most(100), pytest.raises(EnvironmentFault, match="cannot write .*checkpoint-tasks"):
        journal.add("the only task", [CandidatesConfig()])
    assert TaskJournal(journal.path).read("the only task", (CandidatesConfig,)) is None
