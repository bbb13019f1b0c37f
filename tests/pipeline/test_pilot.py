"""`r2v pilot` with emulated models: its questions, its bill, its output and its files."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import Config, load
from r2v.emulator import Emulator, Lifecycle
from r2v.errors import EnvironmentFault, UsageError
from r2v.pipeline.pilot import pilot_of_agent
from r2v.wire.exchange import WireReply
from r2v.wire.message import Message
from tests.llm.talk import environment
from tests.serve.stub import Seen, Step, Stub, reply, stub
from tests.serve.test_record import AGENT, answer, config_of
from tests.serve.wires import USAGE, USD, whole
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
    assert main(["run", "--dry-run", "--overrides", *WORDS[2:]]) == 0
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


KEY = "sk-marker-of-the-provider-0123456789"


@pytest.fixture(autouse=True)
def _stub_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_API_KEY", KEY)


ONE = "ask('/v1/chat/completions', {'model': 'whatever', 'messages': [{'role': 'user', 'content': sys.argv[1]}]})"


def pilot_config(provider: Stub, *more: str) -> Config:
    api = {"base_url": f"{provider.url}/v1", "api_key_env": "STUB_API_KEY", "usd_in": 0.1, "usd_out": 0.4}
    config = config_of(provider, "teacher.max_usd=20", *more)
    policy = load({"policy": {"provider": "openai", "model_name": "little-1", "api": api}}).policy
    return replace(config, policy=policy)


def test_a_pilot_plays_an_agent_by_both_models(tmp_path: Path) -> None:
    """The small model fails hard tasks; the agent fails there."""

    def says(seen: Seen) -> list[Step]:
        knows = seen.json["model"] == "big-1" or "hard" not in seen.body.decode()
        message = Message(role="assistant", content="yes" if knows else "no")
        return reply(whole("chat", WireReply(message=message, usage=USAGE, id="r", model=seen.json["model"])))

    script = tmp_path / "agent.py"
    script.write_text(AGENT + f"sys.exit(b'yes' not in {ONE})")
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("easy one\nhard one; echo $HOME\n\nhard two\n")
    command = f"{sys.executable} {script} {{task}}"
    with stub(says) as provider:
        told = pilot_of_agent(pilot_config(provider), tasks, command, tmp_path)
        assert told.figures.only_large == ("hard one; echo $HOME", "hard two") and told.figures.small.success == 1 / 3
        assert told.figures.large.usd == pytest.approx(USD) and told.figures.small.usd == pytest.approx(USD / 10)
        asked = len(provider.seen)
        assert pilot_of_agent(pilot_config(provider), tasks, command, tmp_path).lines == told.lines
        assert len(provider.seen) == asked == 6, "nothing is paid again"
        other = f"{sys.executable} {script} {{task}} --other"
        assert pilot_of_agent(pilot_config(provider), tasks, other, tmp_path).figures == told.figures
        assert len(provider.seen) == 2 * asked, "another command is another pilot"
        assert {seen.json["model"] for seen in provider.seen} == {"big-1", "little-1"}
    assert "hard one" in told.page.read_text() and KEY not in told.page.read_text()


def test_bad_pilots_of_agents_are_one_line(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.txt"
    tasks.write_text("a\n")
    with stub(answer) as provider:
        config = pilot_config(provider)
        with pytest.raises(UsageError, match="has no {task}"):
            pilot_of_agent(config, tasks, "agent", tmp_path)
        with pytest.raises(UsageError, match="no command line"):
            pilot_of_agent(config, tasks, "agent '{task}", tmp_path)
        with pytest.raises(UsageError, match="max_usd is not set"):
            pilot_of_agent(pilot_config(provider, "teacher.max_usd=null"), tasks, "agent {task}", tmp_path)
        with pytest.raises(EnvironmentFault, match="asked no model"):
            pilot_of_agent(config, tasks, "true {task}", tmp_path)
