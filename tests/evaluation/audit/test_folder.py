"""An evaluation's records about itself, and the files allowed in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.data.schema import from_dict
from r2v.errors import InputError
from r2v.evaluation.audit import folder
from r2v.evaluation.audit.folder import EvaluationSummary, require_small_files

SUMMARY = {"n_episodes": 3, "thresholds": {"r2v@main": 0.5}}


def test_a_configuration_that_asked_for_more_tasks_than_there_are_is_no_finding() -> None:
    said = {**SUMMARY, "fewer_than_asked": {"evaluation.num_tasks": {"asked": 9, "there": 3}}}
    assert from_dict(EvaluationSummary, said).n_episodes == 3


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    for name, size in (("setup.json", folder.LARGEST_JSON + 1), ("a.jsonl.zst", folder.LARGEST_LINES + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        with pytest.raises(InputError, match="R2V writes no such file above"):
            require_small_files(tmp_path)
        (tmp_path / name).unlink()
