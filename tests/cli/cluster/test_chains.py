"""Command lines of a cluster reach the pipeline's functions, and mistakes get one line."""

from __future__ import annotations

import argparse

import pytest

from r2v.cli import main as cli
from r2v.cli.cluster.chains import chain_name, resumption, submission
from r2v.config import load
from r2v.errors import UsageError
from r2v.pipeline.graph import selection
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked


def parsed(*words: str) -> argparse.Namespace:
    return cli.build_parser().parse_args(words)


def test_run_all_as_typed() -> None:
    values = parsed(
        "run_all",
        "webarena",
        "--dry-run",
        "--from",
        "3b",
        "--without",
        "9",
        "evaluate",
        "--overrides",
        "seed=4",
        "training.lr=1e-5",
        "--max-gpu-hours",
        "200",
        "--allow-env",
        "LAB_SECRET",
    )
    assert submission(values) == {
        "benchmark": "webarena",
        "config": None,
        "overrides": ["seed=4", "training.lr=1e-5"],
        "start": "3b",
        "without": ["9", "evaluate"],
        "dry_run": True,
        "here": False,
        "take_over": False,
        "allow_env": ["LAB_SECRET"],
        "max_attempts": 3,
        "max_gpu_hours": 200.0,
        "live": False,
    }
    rows, _ = selection(load(None, []), start="3b", without=["9", "evaluate"])
    names = [row.name for row in rows]
    assert names[0] == "verifier" and not {"ablations", "evaluate"} & set(names), "numbers are names of jobs as well"
    for spelling in ("--local", "--here"):
        local = submission(parsed("run_all", "desk", spelling, "--max-attempts", "1"))
        assert local["here"] and local["max_attempts"] == 1


def test_resume_and_cancel_as_typed(faked: Faked) -> None:
    faked.chain()
    assert resumption(parsed("resume", "--from", "5", "--overrides", "training.batch_size=2")) == {
        "name": "desk_noisy",
        "start": "5",
        "overrides": ["training.batch_size=2"],
        "allow_env": [],
        "max_attempts": None,
        "max_gpu_hours": None,
        "live": False,
    }
    assert chain_name(parsed("cancel")) == "desk_noisy"
    with pytest.raises(UsageError, match="did you mean desk_noisy"):
        chain_name(parsed("cancel", "desk_noisi"))


@pytest.mark.parametrize(
    "words",
    [
        ["run_all"],
        ["resume"],
        ["cancel"],
        ["logs", "a", "b", "c"],
        ["logs", "bc"],
        ["graph", "--format", "svg"],
        ["cluster", "get"],
        ["statu"],
    ],
)
def test_nonsense_is_one_line_and_exit_2(words: list[str], faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1 and faked.calls == []
