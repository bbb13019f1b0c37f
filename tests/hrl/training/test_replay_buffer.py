"""The ring: the rows it keeps, their shares of a batch, its files, and rows that are too old."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from r2v.errors import EmptyResult, InputError, UsageError
from r2v.hrl.training.replay_buffer import ReplayBuffer, usable

COLUMNS = {"number": torch.tensor(0), "ids": torch.zeros(3, dtype=torch.int32)}


def rows(first: int, last: int) -> dict[str, Tensor]:
    number = torch.arange(first, last)
    return {"number": number, "ids": (number[:, None] * torch.tensor([1, 10, 100])).int()}


def ring(capacity: int, *cuts: int) -> ReplayBuffer:
    """Return a ring filled by rows 0, 1, 2, ... in pieces."""
    made = ReplayBuffer(capacity, COLUMNS)
    for first, last in zip((0, *cuts), cuts, strict=False):
        made.add(rows(first, last))
    return made


def held(replay: ReplayBuffer) -> list[int]:
    return sorted(replay.columns["number"][: len(replay)].tolist())


@pytest.mark.parametrize("cuts", [(3,), (2, 5), (5,), (5, 6, 13), (4, 23), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_the_newest_rows_are_kept_and_columns_stay_together(cuts: tuple[int, ...]) -> None:
    replay = ring(5, *cuts)
    assert held(replay) == list(range(max(0, cuts[-1] - 5), cuts[-1]))
    assert (len(replay), replay.inserted) == (min(5, cuts[-1]), cuts[-1])
    assert torch.equal(replay.columns["ids"], replay.columns["number"][:, None].int() * torch.tensor([1, 10, 100]))


def test_how_rows_come_in_pieces_does_not_matter() -> None:
    one, many = ring(5, 13), ring(5, 1, 4, 6, 13)
    assert torch.equal(one.columns["number"], many.columns["number"])


def test_a_batch_is_uniform_over_what_is_held() -> None:
    replay = ring(8, 11)
    drawn = Counter(int(n) for key in range(50) for n in replay.sample(400, "seed", key)["number"])
    assert sorted(drawn) == list(range(3, 11))
    assert all(abs(count - 2500) < 5 * (20000 * 1 / 8 * 7 / 8) ** 0.5 for count in drawn.values())


def test_a_key_is_a_batch() -> None:
    replay = ring(100, 100)
    once = replay.sample(64, 7, "critic", 3)
    assert torch.equal(replay.sample(64, 7, "critic", 3)["number"], once["number"])
    assert not torch.equal(replay.sample(64, 7, "critic", 4)["number"], once["number"])
    assert torch.equal(once["ids"][:, 0].long(), once["number"])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_share_one_batch(ranks: int) -> None:
    replay = ring(100, 70)
    whole = replay.sample(17, 1, "critic")["number"]
    parts = [replay.sample(17, 1, "critic", rank=rank, ranks=ranks)["number"] for rank in range(ranks)]
    assert torch.equal(torch.cat(parts), whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_older_guidance_led_to_is_not_used_but_for_last_turns() -> None:
    done = torch.tensor([False, False, False, True, True])
    version = torch.tensor([0, 1, 9, 0, 9])
    assert usable(done, version, current=9).tolist() == [False, True, True, True, True]
    assert usable(done, version, current=9, max_age=9).all()
    replay = ring(5, 5)
    among = usable(done, version, current=20)
    assert sorted(set(replay.sample(200, 1, among=among)["number"].tolist())) == [3, 4]
    with pytest.raises(EmptyResult, match=r"none of its 5 .*replay\.max_age"):
        replay.sample(2, 1, among=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(EmptyResult):
        ReplayBuffer(5, COLUMNS).sample(2, 1)


def same(one: ReplayBuffer, other: ReplayBuffer) -> bool:
    return (one.inserted, one.capacity) == (other.inserted, other.capacity) and all(
        torch.equal(one.columns[name][: len(one)], other.columns[name][: len(one)]) for name in one.columns
    )


@pytest.mark.parametrize("capacity", [5, 8, 100])
def test_what_was_saved_comes_back_at_every_cursor(capacity: int, tmp_path: Path) -> None:
    replay, cursors = ReplayBuffer(capacity, COLUMNS), [0, 3, 4, 9, 9, 20, 26]
    for first, last in zip([0, *cursors], cursors, strict=False):
        replay.add(rows(first, last))
        assert replay.save(tmp_path) == last
    for cursor in cursors:
        loaded = ReplayBuffer(capacity, COLUMNS)
        loaded.load(tmp_path, cursor)
        assert same(loaded, ring(capacity, cursor))
        loaded.add(rows(cursor, cursor + 2))
        assert same(loaded, ring(capacity, cursor, cursor + 2))


def test_a_save_writes_what_is_new_and_touches_nothing_else(tmp_path: Path) -> None:
    replay = ring(1000, 500)
    replay.save(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.iterdir()}
    replay.add(rows(500, 510))
    replay.save(tmp_path)
    fresh = set(tmp_path.iterdir()) - set(before)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in before} == before
    assert [path.stat().st_size for path in fresh] < [path.stat().st_size for path in before]
    assert len(fresh) == 1
    replay.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_goes_on_from_an_older_checkpoint_replaces_what_came_after(tmp_path: Path) -> None:
    """The killed run had saved rows that the resumed one plays differently."""
    replay = ring(50, 10)
    replay.save(tmp_path)
    for last in (17, 21):
        replay.add({name: column + 1000 for name, column in rows(replay.inserted, last).items()})
        replay.save(tmp_path)
    resumed = ReplayBuffer(50, COLUMNS)
    resumed.load(tmp_path, 10)
    resumed.add(rows(10, 19))
    resumed.save(tmp_path)
    again = ReplayBuffer(50, COLUMNS)
    again.load(tmp_path, 19)
    assert same(again, ring(50, 19))


def test_loading_leaves_the_folder_alone(tmp_path: Path) -> None:
    """Other ranks read it too, and a newer checkpoint may need it."""
    replay = ring(50, 10)
    replay.save(tmp_path)
    replay.add(rows(10, 20))
    replay.save(tmp_path)
    before = sorted(tmp_path.iterdir())
    ReplayBuffer(50, COLUMNS).load(tmp_path, 10)
    assert sorted(tmp_path.iterdir()) == before


def test_what_no_checkpoint_needs_is_forgotten(tmp_path: Path) -> None:
    replay = ReplayBuffer(10, COLUMNS)
    for last in range(4, 44, 4):
        replay.add(rows(last - 4, last))
        replay.save(tmp_path)
    replay.forget(tmp_path, 32)
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "replay-000000000020-000000000024.safetensors"
    for cursor in (32, 36, 40):
        loaded = ReplayBuffer(10, COLUMNS)
        loaded.load(tmp_path, cursor)
        assert same(loaded, ring(10, cursor))


def test_a_missing_or_foreign_segment_is_named(tmp_path: Path) -> None:
    replay = ring(50, 10)
    replay.save(tmp_path)
    replay.add(rows(10, 20))
    replay.save(tmp_path)
    with pytest.raises(InputError, match="transitions 20 to 30 are missing"):
        ReplayBuffer(50, COLUMNS).load(tmp_path, 30)
    with pytest.raises(InputError, match="transitions 10 to 15 are missing"):
        ReplayBuffer(50, COLUMNS).load(tmp_path, 15)
    with pytest.raises(InputError, match="not a segment of this replay"):
        ReplayBuffer(50, {"number": torch.tensor(0)}).load(tmp_path, 20)
    first, second = sorted(tmp_path.iterdir())
    second.write_bytes(second.read_bytes()[:-7])
    with pytest.raises(InputError, match=f"{second.name}: not a segment"):
        ReplayBuffer(50, COLUMNS).load(tmp_path, 20)
    first.unlink()
    with pytest.raises(InputError, match="transitions 0 to 20 are missing"):
        ReplayBuffer(50, COLUMNS).load(tmp_path, 20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": torch.arange(2)},
        {"number": torch.arange(2), "ids": torch.zeros(3, 3)},
        {"number": torch.arange(2), "ids": torch.zeros(2, 4)},
        {**rows(0, 2), "more": torch.arange(2)},
    ],
)
def test_rows_of_another_shape_are_refused(wrong: dict[str, Tensor]) -> None:
    with pytest.raises(UsageError, match="replay: rows of"):
        ring(5, 2).add(wrong)
    with pytest.raises(UsageError, match=r"replay\.capacity=0"):
        ReplayBuffer(0, COLUMNS)
