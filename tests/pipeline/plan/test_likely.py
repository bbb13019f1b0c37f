"""Likely bill of a stage: from an earlier run here, else from the collection, else a guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.config import Config, load, to_yaml
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.likely import billed_here, likely_dollars

MODEL = "gpt-5.2"
PAID = ("teacher.provider=openai", "teacher.model_name=gpt-5.2")


def billed(root: Path, name: str, config: Config, usd: float, *, folder: str | None = None) -> None:
    """Make a finished stage whose journal was billed."""
    made = root / "outputs/.artifacts" / name
    made.mkdir(parents=True)
    (made / "artifact.json").write_text("{}")
    (made / "config.yaml").write_text(to_yaml(config))
    if folder is not None:
        (made / "runs.jsonl").write_text(json.dumps({"run_id": Path(folder).parts[-2]}) + "\n")
    run = f"{len(list(made.parent.iterdir())):04d}"
    place = folder or f"outputs/.artifacts/{name}/.provider/1"
    ProjectLedger(root).write(
        JournalEntry(
            run=run, folder=place, payer="desk_noisy", scope={"model": MODEL}, open=False, usd=usd, answered=100
        )
    )


def evaluation_tasks(config: Config) -> float:
    return 10.0 * (config.evaluation.num_tasks or 0)


def test_an_earlier_run_of_the_stage_is_scaled_by_the_questions_of_both(tmp_path: Path) -> None:
    for tasks, usd in ((2, 0.5), (40, 3.0)):
        billed(tmp_path, f"evaluate-{tasks:016x}", load(None, [*PAID, f"evaluation.num_tasks={tasks}"]), usd)
    billed(tmp_path, "evaluate-other", load(None, ["teacher.provider=openai", "teacher.model_name=gpt-6-luna"]), 99.0)
    config = load(None, [*PAID, "evaluation.num_tasks=60"])
    found = likely_dollars(
        job("evaluate"), config, {MODEL: evaluation_tasks(config)}, 100.0, evaluation_tasks, tmp_path
    )
    assert found is not None and found.usd == pytest.approx(4.5), "the nearest in size"
    assert found.how == "as evaluate-0000000000000028 was billed ($3.0000), times 1.5"


def test_without_one_it_is_a_guess_and_says_so(tmp_path: Path) -> None:
    config = load(None, PAID)
    guess = likely_dollars(job("evaluate"), config, {MODEL: 1000}, 100.0, evaluation_tasks, tmp_path)
    assert guess is not None and guess.usd == pytest.approx(5.0)
    assert guess.how == "a guess: 5% of the questions, at the list price"
    billed(tmp_path, "collect-0123456789abcdef", config, 0.2, folder="data/runs/r1/provider")
    assert [one.usd for one in billed_here(tmp_path)] == [0.2]
    better = likely_dollars(job("evaluate"), config, {MODEL: 1000}, 100.0, evaluation_tasks, tmp_path)
    assert better is not None and better.usd == pytest.approx(0.1)
    assert (
        better.how == "a guess: $0.00200 a question of gpt-5.2 as in collect-0123456789abcdef, of 5% of the questions"
    )


def test_nothing_is_told_of_what_costs_nothing_or_is_not_counted(tmp_path: Path) -> None:
    for asked in ({}, {MODEL: 0.0}, {MODEL: float("nan")}):
        assert likely_dollars(job("evaluate"), load(None, PAID), asked, 1.0, evaluation_tasks, tmp_path) is None
    assert likely_dollars(job("evaluate"), load(None, PAID), {MODEL: 9.0}, None, evaluation_tasks, tmp_path) is None
