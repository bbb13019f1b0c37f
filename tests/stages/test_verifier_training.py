"""A paid teacher that always succeeds: the chain reaches the table, by executed wrong actions or without verifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.data.registry import DataRegistry
from r2v.emulator import Emulator, Lifecycle
from r2v.storage.record import UNATTENDED
from tests import trust
from tests.llm.talk import environment

PAID = (
    "teacher.provider=openai",
    "teacher.model_name=gpt-5.2",
    "teacher.max_tokens=64",
    "teacher.mode=concurrent",
    "teacher.preflight=false",
    "teacher.project_max_usd=50",
    "data.num_episodes=24",
    "training.num_epochs=1",
    "evaluation.num_tasks=2",
    "evaluation.oracle_tasks=0",
    "evaluation.gains_tasks=0",
    "evaluation.frontier_tasks=0",
    "router.rounds=0",
    "router.num_tasks=5",
    "router.num_calibration_tasks=3",
    "candidates.num_tasks=1",
    "training.bc.max_examples=40",
    "evaluation.methods=[slm_only,llm_only,entropy_router,verifier_router,r2v]",
    "evaluation.conditions=[noisy]",
    "router.features=[uncertainty,progress,verifier]",
)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    monkeypatch.chdir(tmp_path)
    with Emulator(answer="desk", lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        yield emulator


def run(*more: str) -> int:
    return main(["run", "--config", str(trust.MICRO), "--without", "ablations", *more, "--overrides", *PAID])


def test_without_a_cap_the_verifier_is_left_out_with_all_that_reads_it(
    provider: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run() == 4, "one epoch on 40 episodes teaches nothing"
    said = capsys.readouterr().err
    assert "candidates and what follows ask gpt-5.2, and the small policy solved 0 of 20 calibration tasks" in said
    assert "  price of the rest: stages=candidates..ablations likely_usd=" in said
    paid, words = len(provider.ledger().bills), ["generate_candidates", "--config", str(trust.MICRO)]
    monkeypatch.setenv(UNATTENDED, "1")
    assert main([*words, "--overrides", *PAID]) == 4, "a job of a chain"
    monkeypatch.delenv(UNATTENDED)
    assert len(provider.ledger().bills) == paid and main([*words, "--overrides", *PAID]) == 0, "by hand"
    assert run("--overrides", "anyway=true") == 0
    said += capsys.readouterr().err
    assert len(provider.ledger().bills) > paid and "stage=candidates reason=the small policy solved 0" in said
    (collected,) = DataRegistry(tmp_path / "data").query()
    assert collected.success_rate > 0.9
    assert "verifier left out" in said and "verifier.label_sources=[corrupted] executes wrong actions" in said
    assert "evaluation without a verifier: left_out=verifier_router, features of the verifier" in said
    report = json.loads(Path("outputs/micro/verifier/verifier_report.json").read_text())
    assert "stand in too few tasks to leave any of these out" in report["left_out"]
    table = Path("results/micro/structured_results/main_table.csv").read_text()
    assert "r2v" in table and "verifier_router" not in table
    assert main(["verify-results", "results/micro"]) == 0
    assert main(["export", "bundle", "--config", str(trust.MICRO), "--overrides", *PAID]) == 0
    assert not Path("bundle/verifier").exists() and Path("bundle/router/r2v.json").exists()


def test_with_a_cap_wrong_actions_are_executed(provider: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(trust.MICRO), "--overrides", *PAID, "teacher.max_usd=5"]
    assert main(["collect", *words]) == 0 and main(["train_verifier", *words]) == 0
    said = capsys.readouterr().err
    assert "recorded outcomes alone teach nothing, labels come from corrupted actions: teacher.max_usd=5" in said
    assert Path("outputs/micro/verifier/final").is_dir()
