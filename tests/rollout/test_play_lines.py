"""A line of a play is whole or is nothing, whoever wrote it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from r2v.config import CandidatesConfig
from r2v.errors import EnvironmentFault
from r2v.rollout.play_lines import (
    BrokenPlay,
    PlayFile,
    fault_of,
    header_of,
    line_at,
    lines_from,
    play_line,
    raw_records,
    records_of,
)
from tests.storage.test_checkpoint import files_of_at_most

KEY = "0123456789abcdef" * 2
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
