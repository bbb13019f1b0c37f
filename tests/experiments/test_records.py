"""The record of an experiment is read strictly, and an experiment is found by each of its names."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.errors import InputError, UsageError
from r2v.experiments.records import (
    ExperimentRecord,
    RunRecord,
    chosen,
    experiments,
    new_folder,
    read_record,
    write_record,
)


def record(name: str, at: str) -> ExperimentRecord:
    run = RunRecord(run="run_001", status="pending", config_path="c", run_dir="d", identity="i", values={"lr": 0.1})
    return ExperimentRecord(name=name, mode="training", spec="s", spec_sha256="0", created_at=at, runs=(run,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = new_folder("a")
    write_record(made, record("a", "2026-01-01"))
    return made


def test_what_is_written_is_read_and_damage_is_named(folder: Path) -> None:
    assert read_record(folder) == record("a", "2026-01-01")
    for text in ("", "{", "[]", '{"runs": 3}', '{"name": "a", "runs": [{}]}'):
        (folder / "experiment.json").write_text(text)
        with pytest.raises(InputError, match=r"experiment\.json is damaged"):
            read_record(folder)


def test_an_experiment_is_found_by_name_id_or_folder(folder: Path) -> None:
    later = new_folder("a")
    write_record(later, record("a", "2026-01-02"))
    assert list(experiments()) == [folder, later] and folder != later
    assert chosen(None) == chosen("a") == later
    assert chosen(folder.name) == chosen(str(folder)) == chosen(f"experiments/{folder.name}") == folder
    assert chosen(f"outputs/experiments/{folder.name}/runs/run_001") == folder
    with pytest.raises(InputError, match="no such experiment"):
        chosen("b")


def test_a_run_is_found_by_its_name(folder: Path) -> None:
    assert read_record(folder).run("run_001").values == {"lr": 0.1}
    with pytest.raises(UsageError, match="did you mean run_001"):
        read_record(folder).run("run_01")
