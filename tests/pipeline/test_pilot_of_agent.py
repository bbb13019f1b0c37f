"""Pilot of an agent: its command plays each task by both models, under one cap."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.errors import EnvironmentFault, UsageError
from r2v.pipeline.pilot_of_agent import pilot_of_agent
from r2v.wire.exchange import WireReply
from r2v.wire.message import Message
from tests.serve.stub import Seen, Step, Stub, reply, stub
from tests.serve.test_record import AGENT, answer, config_of
from tests.serve.wires import USAGE, USD, whole

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
    """The small model says nothing to hard tasks; the agent fails there."""

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
