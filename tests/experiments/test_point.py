"""A sweep over the pipeline: shared stages are made once, and only the stages that a key concerns are made again."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.emulator import Emulator
from r2v.experiments.records import read_record
from r2v.experiments.schedule.opening import RunOptions
from r2v.experiments.schedule.orchestrator import run_experiment
from tests import trust, warm
from tests.llm.talk import environment
from tests.trust.alter import hard_copy

SPEC = """\
name: budgets
mode: training
stage: evaluate
base_config: micro.yaml
fixed_overrides:
  logging: {report: false}
  evaluation:
    {num_tasks: 4, seeds: [1], conditions: [noisy], methods: [slm_only, r2v], budgets: [], gains_tasks: 0}
sweep:
  router.budget: [0.05, 0.3]
metric: r2v/noisy/success_rate
"""


@pytest.fixture
def project(micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project with the pipeline's smallest run, and a sweep over its router."""
    hard_copy(micro_run, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "executable", warm.python())
    Path("micro.yaml").write_text(trust.MICRO.read_text())
    Path("spec.yaml").write_text(SPEC)
    return tmp_path / "project"


def test_a_sweep_over_the_router_makes_the_router_and_the_evaluation_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiments", "run", "--exp", "spec.yaml", "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "2 points" in planned and "4 stages to make" in planned and "router evaluate" in planned
    folder = run_experiment(Path("spec.yaml"), RunOptions(slots=2))
    runs = read_record(folder).runs
    assert [run.status for run in runs] == ["completed"] * 2
    made: Counter[str] = Counter()
    for run in runs:
        log = (Path(run.run_dir) / "output.log").read_text()
        made.update(re.findall(r"^stage running: stage=(\w+) position=stage \d+ of \d+$", log, re.M))
        assert "stage up to date: stage=bc" in log
        artifacts = json.loads((Path(run.run_dir) / "artifacts.json").read_text())
        assert set(artifacts) >= {"collect", "bc", "router", "evaluate"}
    assert made == {"router": 2, "evaluate": 2}
    assert main(["experiments", "compare"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("router.budget=") >= 3 and "comparison.png" in printed and "units" in printed
    assert main(["gc", "--dry-run"]) == 0
    garbage = [line for line in capsys.readouterr().out.splitlines() if "nothing points at it" in line]
    named = json.loads((Path(runs[0].run_dir) / "artifacts.json").read_text()).values()
    assert not [line for line in garbage if any(name in line for name in named)]


PAID = """\
name: paid
mode: training
stage: evaluate
base_config: base.yaml
sweep: {evaluation.num_tasks: [2, 3]}
"""
LLM = """\
env: {options: {num_tasks: 60, num_heldout: 0}}
evaluation: {methods: [llm_only], seeds: [1], conditions: [clean], bootstrap: 20, budgets: []}
teacher: {provider: openai, model_name: gpt-5.2, max_usd: 50, mode: concurrent, preflight: false, reconcile_after: 0.2}
"""


def test_what_points_ask_of_a_provider_is_billed_once_over_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two evaluations at a time, of two tasks and of three: the second asks all of the first's questions, and more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", warm.python())
    Path("base.yaml").write_text(LLM)
    Path("spec.yaml").write_text(PAID)
    with Emulator(answer="desk") as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        folder = run_experiment(Path("spec.yaml"), RunOptions(slots=2))
        paid = emulator.ledger().paid()
    runs = read_record(folder).runs
    assert [run.status for run in runs] == ["completed"] * 2
    assert [len((Path(run.run_dir) / "outcomes.csv").read_text().splitlines()) - 1 for run in runs] == [2, 3]
    assert max(paid.values()) == 1 and len(paid) >= 3
