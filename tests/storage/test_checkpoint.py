"""A checkpoint is resumed only while every file of it is as it was written."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from r2v.errors import EnvironmentFault, InputError
from r2v.storage.checkpoint import (
    KEPT,
    LATEST,
    SEAL,
    damage,
    forget,
    newest_whole,
    numbers,
    point,
    resuming,
    saving,
    seal,
)


def made(folder: Path, number: int) -> Path:
    place = folder / f"checkpoint-{number}"
    (place / "inner").mkdir(parents=True)
    (place / "state.pt").write_bytes(bytes(range(256)) * number)
    (place / "inner" / "part.bin").write_bytes(b"x" * 100)
    seal(place)
    point(folder, place)
    return place


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


RESTARTED = "training restarted without a checkpoint: training=bc reason"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": flipped,
    "gone": Path.unlink,
    "a folder": replaced_by_a_folder,
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("name", ["state.pt", "inner/part.bin", SEAL])
@pytest.mark.parametrize("kind", DAMAGES)
def test_whatever_is_damaged_is_named_and_the_one_before_is_taken(
    kind: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = made(tmp_path, 3), made(tmp_path, 7)
    assert damage(older) is damage(newest) is None and newest_whole(tmp_path, "bc") == newest and not caplog.records
    DAMAGES[kind](newest / name)
    assert newest_whole(tmp_path, "bc") == older and (tmp_path / LATEST).resolve() == older
    [record] = caplog.records
    culprit = newest if (kind, name) == ("flipped", SEAL) else newest / name
    assert str(culprit) in record.getMessage() and "resume=checkpoint-3" in record.getMessage()
    DAMAGES[kind](older / name)
    assert newest_whole(tmp_path, "bc") is None and not (tmp_path / LATEST).is_symlink()
    assert "training restarted" in caplog.records[-1].getMessage() and len(caplog.records) == 2
    assert newest_whole(tmp_path, "bc") is None and len(caplog.records) == 2, "said once"


SHAPES = [
    "[]",
    "null",
    '"x"',
    '{"state.pt": 7}',
    "[" * 100_000,
    '{"../../passwd": "0"}',
    '{"/dev/zero": "0"}',
    '{"": 0}',
]


@pytest.mark.parametrize("text", SHAPES)
def test_hashes_of_any_shape_are_damage(text: str, tmp_path: Path) -> None:
    place = made(tmp_path, 1)
    (place / SEAL).write_text(text)
    problem = damage(place)
    assert problem is not None and "\n" not in problem


def test_what_differs_is_said_with_the_beginning_of_both_hashes(tmp_path: Path) -> None:
    place = made(tmp_path, 1)
    recorded = json.loads((place / SEAL).read_text())["state.pt"]
    (place / "state.pt").write_bytes(b"other")
    current = hashlib.sha256(b"other").hexdigest()
    assert damage(place) == (
        f"{place / 'state.pt'} is not what was written (SHA-256 {current[:12]}, recorded {recorded[:12]})"
    )


def test_a_file_outside_the_training_is_no_part_of_a_checkpoint_whatever_its_hash(tmp_path: Path) -> None:
    place, outside = made(tmp_path / "training", 1), tmp_path / "outside"
    outside.write_bytes(b"rows")
    seal(place, [outside])
    assert damage(place) == f"{outside} is no file of this training"


def test_a_checkpoint_that_is_gone_as_a_whole_is_named_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older, newest = made(tmp_path, 3), made(tmp_path, 7)
    shutil.rmtree(newest)
    assert newest_whole(tmp_path, "bc") == older
    assert caplog.messages == [f"  checkpoint skipped: training=bc resume=checkpoint-3 reason={newest} is missing"]
    shutil.rmtree(older)
    assert newest_whole(tmp_path, "bc") is None
    assert caplog.messages[1:] == [f"  {RESTARTED}={older} is missing"]
    (tmp_path / LATEST).symlink_to("elsewhere")
    assert newest_whole(tmp_path, "bc") is None
    assert caplog.messages[2:] == [f"  {RESTARTED}={tmp_path / LATEST} leads to no checkpoint"]


def test_a_link_that_is_lost_or_copied_as_a_folder_loses_no_checkpoint(tmp_path: Path) -> None:
    newest = made(tmp_path, 2), made(tmp_path, 12)
    (tmp_path / LATEST).unlink()
    assert newest_whole(tmp_path, "bc") == newest[1] == (tmp_path / LATEST).resolve()
    (tmp_path / LATEST).unlink()
    shutil.copytree(newest[0], tmp_path / LATEST)
    assert newest_whole(tmp_path, "bc") == newest[1] == (tmp_path / LATEST).resolve()
    assert numbers(tmp_path) == {2, 12}
    (tmp_path / LATEST).unlink()
    (tmp_path / LATEST).symlink_to("checkpoint-2")
    assert newest_whole(tmp_path, "bc") == newest[0], "what is newer than the link was never whole, or was undone"


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 3, 9):
        made(tmp_path, number)
    (tmp_path / "checkpoint-4.quarantine").mkdir()
    forget(tmp_path, 3)
    assert numbers(tmp_path) == {2, 3, 9} and KEPT == 2
    forget(tmp_path, 3, later=True)
    assert numbers(tmp_path) == {2, 3}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_torch_on_a_disk_that_takes_no_more_is_one_sentence(tmp_path: Path) -> None:
    """Independent of torch's wording: its RuntimeError holds no error number."""
    place = tmp_path / "checkpoint-1"
    place.mkdir()
    with (
        files_of_at_most(30_000),
        pytest.raises(EnvironmentFault, match=r"cannot write .*checkpoint-1.*File too large") as refused,
        saving(place, 400_000),
    ):
        try:
            torch.save(torch.ones(100_000), place / "state.pt")
        except RuntimeError as error:
            raise RuntimeError("words that no pattern knows") from error
    assert "\n" not in str(refused.value) and refused.value.exit_code == 5
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"], "no probe stays"


def test_an_error_of_ours_while_saving_stays_what_it_is(tmp_path: Path) -> None:
    for error in (RuntimeError("shapes differ"), InputError("a"), MemoryError(), RuntimeError("CUDA out of memory")):
        with pytest.raises(type(error)) as raised, saving(tmp_path / "checkpoint-1"):
            raise error
        assert raised.value is error


def test_an_error_of_ours_stays_what_it_is_even_where_the_disk_takes_no_more(tmp_path: Path) -> None:
    with files_of_at_most(30_000), pytest.raises(InputError, match="ours"), saving(tmp_path / "checkpoint-1", 400_000):
        raise InputError("ours")


def test_what_a_strangers_checkpoint_makes_a_trainer_raise_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no checkpoint of this training") as refused, resuming(tmp_path):
        raise KeyError("a\nb")
    assert "\n" not in str(refused.value)
    for place, begun in ((None, False), (tmp_path, True)):
        with pytest.raises(KeyError), resuming(place, lambda begun=begun: begun):  # type: ignore[misc]
            raise KeyError
    with pytest.raises(RuntimeError), resuming(tmp_path):
        raise RuntimeError("CUDA out of memory")


def test_what_lies_beside_a_checkpoint_is_part_of_it(tmp_path: Path) -> None:
    """The segments of a replay buffer belong to it."""
    segment = tmp_path / "replay" / "0.bin"
    segment.parent.mkdir()
    segment.write_bytes(b"rows")
    place = made(tmp_path, 1)
    seal(place, [segment])
    assert damage(place) is None and "../replay/0.bin" in json.loads((place / SEAL).read_text())
    segment.write_bytes(b"cols")
    assert str(segment) in str(damage(place))
