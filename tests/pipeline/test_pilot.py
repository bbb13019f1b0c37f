"""`r2v pilot` against emulated models: what it asks, pays, says and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.emulator import Emulator, Lifecycle
from tests.llm.talk import environment
from tests.two_models import LARGE, SMALL

WORDS = (
    *("--overrides", "evaluation.pilot_tasks=6", "teacher.provider=anthropic", f"teacher.model_name={LARGE}"),
    *("teacher.max_tokens=64", "teacher.preflight=false", "policy.provider=openai", f"policy.model_name={SMALL}"),
    *("policy.api.max_tokens=64", "teacher.max_usd=2", "inference.max_steps=10"),
)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    monkeypatch.chdir(tmp_path)
    with Emulator(answer="tests.two_models:answer", lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        yield emulator


def test_it_says_whether_routing_can_pay_and_what_that_costs(
    provider: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pilot", "--dry-run", *WORDS]) == 0
    assert "pilot: 18 episodes, " in (told := capsys.readouterr().out) and "nothing was asked" in told
    assert provider.ledger().bills == ()
    assert main(["pilot", *WORDS]) == 0
    told = capsys.readouterr().out
    assert "routing can pay" in told or "unclear: at best" in told
    assert "a router that looks ahead, by step" in told and "the full run (r2v run): likely $" in told
    page = Path("results/pilot/desk_noisy.html").read_text()
    assert told.splitlines()[0] in page and f"small: {SMALL}" in page and "<script" not in page
    figures = json.loads(Path("results/pilot/desk_noisy/pilot.json").read_text())["figures"]
    assert figures["num_tasks"] == 6 and figures["by_task"]["success"] >= figures["large"]["success"]
    asked = len(provider.ledger().bills)
    Path("results/pilot/desk_noisy/pilot.json").write_text("{}")
    assert main(["pilot", *WORDS]) == 0 and len(provider.ledger().bills) == asked, "nothing is paid again"
    assert json.loads(Path("results/pilot/desk_noisy/pilot.json").read_text())["figures"] == figures, "made again"
    assert main(["run", "--dry-run", *WORDS[2:]]) == 0
    assert f"of {LARGE} and $" in (plan := capsys.readouterr().out) and "as in pilot-" in plan
    total = next(line for line in plan.splitlines() if line.startswith("all "))
    assert told.split("likely $")[1].split(",")[0] in total, "both estimates are one"


def test_one_model_twice_gains_nothing(provider: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    same = [f"policy.model_name={LARGE}" if "policy.model" in one else one for one in WORDS]
    same = ["policy.provider=anthropic" if "policy.provider" in one else one for one in same]
    assert main(["pilot", *same, "evaluation.pilot_tasks=3"]) == 0
    assert capsys.readouterr().out.startswith("no router can gain here: both are the same model")


def test_a_policy_that_nobody_trained_is_told_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pilot"]) == 3
    assert "needs preference" in capsys.readouterr().err
