"""What an evaluation says of itself beside its files, and what may lie in its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from r2v.data.schema import from_dict
from r2v.errors import InputError
from r2v.evaluation.audit import folder
from r2v.evaluation.audit.folder import EvaluationSummary, plain_files

SUMMARY = {"n_episodes": 3, "thresholds": {"r2v@main": 0.5}}


def test_a_configuration_that_asked_for_more_tasks_than_there_are_is_no_finding() -> None:
    said = {**SUMMARY, "fewer_than_asked": {"evaluation.num_tasks": {"asked": 9, "there": 3}}}
    assert from_dict(EvaluationSummary, said).n_episodes == 3


def test_files_and_empty_folders_of_any_name_are_listed(tmp_path: Path) -> None:
    for name in ("a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "void").mkdir()
    assert plain_files(tmp_path) == {"a.json", ".hidden", "tmp/b", "checkpoint-1/c.meta.json", "void/"}


@pytest.mark.parametrize("target", [None, Path(__file__), Path(__file__).parent, Path("gone")])
def test_what_is_no_plain_file_is_refused_and_never_opened(target: Path | None, tmp_path: Path) -> None:
    odd = tmp_path / "setup.json"
    if target is None:
        os.mkfifo(odd)
    else:
        odd.symlink_to(target)
    with pytest.raises(InputError, match=r"setup\.json is a link, a pipe or a device"):
        plain_files(tmp_path)


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    for name, size in (("setup.json", folder.LARGEST_JSON + 1), ("a.jsonl.zst", folder.LARGEST_LINES + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        with pytest.raises(InputError, match="R2V writes no such file above"):
            plain_files(tmp_path)
        (tmp_path / name).unlink()
