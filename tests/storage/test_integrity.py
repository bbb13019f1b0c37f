"""What is read is what was made: each door hashes, names the file that differs, and the artifact is made again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.storage.artifact import JOURNAL, attempt_of, build, find, look, read
from r2v.storage.artifact_manifest import Damaged, json_sha256
from r2v.storage.integrity import Stray, content_files, hashed, read_hashed, set_aside, verify
from tests.storage.test_artifact import make

DAMAGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda path: path.write_bytes(path.read_bytes()[:-2] + b"?\n"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["data.jsonl", "final/weights", "config.yaml"])
def test_each_door_names_what_was_damaged_and_build_makes_it_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    made = make(tmp_path)
    (made.folder / JOURNAL).mkdir()
    (made.folder / JOURNAL / "paid").write_text("a reply")
    DAMAGES[how](made.folder / name)
    for door in (lambda: look(tmp_path, "bc", "k"), lambda: read(made.folder)):
        with pytest.raises(Damaged, match=f"{name} is damaged: .*artifact.json says") as raised:
            door()
        assert raised.value.path == made.folder / name
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path, "bc", "k") is None
    assert [record.message for record in caplog.records if f"{name} is damaged" in record.message]
    assert make(tmp_path) == made
    assert (made.folder / JOURNAL / "paid").read_text() == "a reply"


def test_what_differs_is_said_with_the_beginning_of_both_hashes(tmp_path: Path) -> None:
    made = make(tmp_path)
    recorded = made.files["data.jsonl"]
    (made.folder / "data.jsonl").write_text("other\n")
    now = content_files(made.folder)["data.jsonl"]
    with pytest.raises(Damaged, match=rf"its content is {now[:12]}, \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)
    (made.folder / "data.jsonl").unlink()
    with pytest.raises(Damaged, match=rf"it is gone, \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)
    (made.folder / "data.jsonl").mkdir()
    with pytest.raises(Damaged, match=rf"it cannot be read \(\w[^)]*\), \S+ says {recorded[:12]}(?![0-9a-f])"):
        read(made.folder)


def test_the_remains_of_a_damaged_attempt_are_not_built_upon(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / "checkpoint-3").mkdir()
    (made.folder / "data.jsonl").write_text("altered\n")
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path) as work:
        assert not (work.folder / "data.jsonl").exists() and not (work.folder / "checkpoint-3").exists()


def test_a_file_that_nobody_made_is_named_and_can_be_set_aside(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / "final" / "adapter_config.json").write_text("{}")
    with pytest.raises(Stray, match=r"adapter_config.json is damaged: .*does not name it; move it away") as raised:
        look(tmp_path, "bc", "k")
    assert set_aside(raised.value.path).read_text() == "{}"
    assert look(tmp_path, "bc", "k") == made


def test_an_artifact_under_anothers_name_is_named(tmp_path: Path) -> None:
    shutil.copytree(make(tmp_path).folder, tmp_path / "bc-l")
    with pytest.raises(Damaged, match="its fingerprint is k, it lies where l belongs"):
        look(tmp_path, "bc", "l")


def test_a_file_where_an_attempt_belongs_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "bc-k").write_text("a stranger's")
    with pytest.raises(Damaged, match="no folder of an artifact"):
        look(tmp_path, "bc", "k")
    make(tmp_path)
    assert [path.read_text() for path in tmp_path.glob("bc-k.*.quarantine")] == ["a stranger's"]


def test_an_attempt_is_not_continued_with_a_damaged_input(tmp_path: Path) -> None:
    first = make(tmp_path)
    make(tmp_path, key="l", bc=first)
    assert attempt_of(tmp_path / "bc-l")[1]["bc"].files == first.files
    (first.folder / "final" / "weights").write_bytes(b"\0\2")
    with pytest.raises(InputError, match=r"final/weights is damaged: .* not the file that .* was begun with"):
        attempt_of(tmp_path / "bc-l")


def test_an_input_that_changes_while_it_is_read_finishes_nothing(tmp_path: Path) -> None:
    first = make(tmp_path)
    with pytest.raises(Damaged, match="data.jsonl"), build(tmp_path, "bc", "l", "m:S", "", {"bc": first}, tmp_path):
        (first.folder / "data.jsonl").write_text("other\n")
    assert look(tmp_path, "bc", "l") is None


def test_asked_to_do_it_again_the_journal_is_set_aside_and_not_removed(tmp_path: Path) -> None:
    made = make(tmp_path)
    (made.folder / JOURNAL).mkdir()
    (made.folder / JOURNAL / "paid").write_text("a reply")
    with build(tmp_path, "bc", "k", "m:S", "", {}, tmp_path, again=True) as work:
        assert not (work.folder / JOURNAL).exists()
    assert [path.read_text() for path in made.folder.glob(f"{JOURNAL}-*/paid")] == ["a reply"]


def test_a_volatile_value_of_another_type_is_content(tmp_path: Path) -> None:
    line = '{"metadata":{"run_id":%s},"steps":[{"reply_id":%s}],"wall_time_seconds":%s}\n'
    honest = (('"a"', '"r1"', "1.5"), ('"b"', "null", "null"))
    damaged = (("7", "null", "1.5"), ('"a"', "null", '"1"'), ('"a"', "null", "NaN"), ('"a"', "3", "1.5"))
    hashes = []
    for values in honest + damaged:
        (tmp_path / "data.jsonl").write_text(line % values)
        hashes.append(content_files(tmp_path)["data.jsonl"])
    assert hashes[0] == hashes[1] and len(set(hashes)) == 5


def test_a_whole_artifact_is_whole(tmp_path: Path) -> None:
    verify(make(tmp_path))


def test_a_record_with_a_hash_of_its_own_is_read_as_written_or_named_with_both_hashes(tmp_path: Path) -> None:
    path, record = tmp_path / "setup.json", hashed({"pair": (1, 2), "rate": 0.5})
    path.write_text(json.dumps(record))
    assert read_hashed(path) == {"pair": [1, 2], "rate": 0.5}
    path.write_text(json.dumps({"rate": 0.5}))
    assert read_hashed(path) == {"rate": 0.5}, "an earlier version wrote no hash"
    path.write_text(json.dumps({**record, "rate": 0.6}))
    now = json_sha256({"pair": [1, 2], "rate": 0.6})
    with pytest.raises(Damaged, match=f"its content is {now[:12]}, it says {record['sha256'][:12]}(?![0-9a-f])"):
        read_hashed(path)
