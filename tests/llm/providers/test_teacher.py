"""Current models of both providers by configuration alone: they demonstrate, judge and call tools with an emulator that
refuses the same requests as today's APIs; retired models and unsupported settings end the run before anything is
sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from r2v.config import load
from r2v.config.config import identity
from r2v.config.models import TeacherConfig
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator, Lifecycle
from r2v.errors import UsageError
from r2v.llm.providers import teacher as module
from r2v.llm.providers.teacher import asked_rate, teacher_rate
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from tests.llm.talk import environment

DAY = date(2026, 11, 23)
SMALL = (
    "env.options.num_tasks=36",
    "env.options.num_heldout=0",
    "data.seeds=[1]",
    "data.num_episodes=3",
    "rollout.workers=1",
    "teacher.flush_seconds=0.1",
    "teacher.poll_seconds=0.02",
    "teacher.max_usd=5",
)


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Yield an emulator of a teacher and its judge, and of a model that is not listed yet."""
    with Emulator(answer=["judge", "desk"], lifecycle=Lifecycle(polls=1), models=["gpt-7-nova"]) as served:
        for name, value in environment(served).items():
            monkeypatch.setenv(name, value)
        yield served


def teacher(**fields: object) -> TeacherConfig:
    return TeacherConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked",
    [
        "openai gpt-6-luna mode=batch",
        "openai gpt-6-luna mode=concurrent actions=json effort=low",
        "openai gpt-6.1-sol mode=batch actions=tools",
        "openai gpt-6-luna mode=concurrent thinking=disabled temperature=0.3 actions=auto",
        "openai gpt-7-nova mode=concurrent usd_in=1 usd_out=2",
        "anthropic claude-opus-5-5 mode=batch effort=low",
        "anthropic claude-sonnet-5-5 mode=concurrent actions=tools thinking=disabled",
        "anthropic claude-haiku-5-5 mode=concurrent actions=json thinking_tokens=500",
        "anthropic claude-haiku-4-5 mode=batch thinking=enabled thinking_tokens=1024 actions=tools",
    ],
)
def test_a_current_model_demonstrates_by_configuration_alone(asked: str, emulator: Emulator, tmp_path: Path) -> None:
    provider, name, *more = asked.split()
    settings = [f"teacher.{setting}" for setting in more]
    config = load(None, [*SMALL, f"teacher.provider={provider}", f"teacher.model_name={name}", *settings])
    run_job(config, job("collect"), {}, root=tmp_path)
    run = DataRegistry(tmp_path / "data").query()[-1]
    episodes = list(StoredEpisodes(run.trajectories))
    assert (run.status, run.n_episodes, run.n_env_faults) == ("done", 3, 0)
    assert all(episode.steps for episode in episodes) and any(episode.success for episode in episodes)
    actions = [json.loads(step.action.raw_text) for episode in episodes for step in episode.steps]
    assert all("tool" in action for action in actions), "one spelling, whichever way they came"
    before, *bills = emulator.ledger().bills
    assert (before.model, before.mode) == (name, "sync"), "the call before the run, under the cap like all others"
    assert {(bill.model, bill.mode) for bill in bills} == {(name, "batch" if "mode=batch" in more else "sync")}
    assert len(bills) == len(actions)


def asked_again(root: Path) -> list[str]:
    """Return the reasons for repeated requests, from the journals of a project."""
    rows = [json.loads(row) for path in root.rglob("journal.jsonl") for row in path.read_text().splitlines()]
    return [
        row.get("why") or row["reason"]
        for row in rows
        if row["row"] in ("lost", "failed") and row.get("kind") != "preflight"
    ]


@pytest.mark.parametrize(("provider", "name"), [("openai", "gpt-6.1-sol"), ("anthropic", "claude-opus-5-5")])
def test_teacher_and_judge_are_one_emulator(provider: str, name: str, emulator: Emulator, tmp_path: Path) -> None:
    """The judge asks for few tokens, which the model's thoughts would use up if they had no allowance of their own."""
    words = [f"teacher.provider={provider}", f"teacher.model_name={name}", "teacher.mode=concurrent"]
    verifier = ["verifier.mode=llm_judge", "training.verifier.num_epochs=1", "policy.device=cpu"]
    config = load(None, [*SMALL, *words, *verifier])
    collected = run_job(config, job("collect"), {}, root=tmp_path).artifact
    before = len(emulator.ledger().bills)
    made = run_job(config, job("verifier"), {"collect": collected}, root=tmp_path).artifact
    report = json.loads((made.folder / "judge_report.json").read_text())
    asked = len(emulator.ledger().bills) - before
    read = report["questions"]["read"]
    assert report["questions"] == {"read": read, "unreadable": 0, "refused": 0}, asked_again(tmp_path)
    lost = asked_again(tmp_path)
    assert 0 < read <= asked <= read + len(lost), ("each question once, but for what the journal calls lost", lost)
    assert report["judge"] == {"provider": provider, "model": name}
    alone = load(None, [*SMALL, "data.num_episodes=7", *verifier, "teacher.attempts=2"])
    again = run_job(alone, job("verifier"), {"collect": published(alone, "collect", tmp_path)}, root=tmp_path).artifact
    assert (again.folder / "judge_report.json").read_bytes() == (made.folder / "judge_report.json").read_bytes()
    assert len(emulator.ledger().bills) == before + asked, ("what was answered is not asked", asked_again(tmp_path))


def test_a_retired_model_ends_with_its_successor_and_a_dying_one_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module._warn.cache_clear()
    gone = teacher(provider="openai", model_name="gpt-4-turbo")
    with pytest.raises(UsageError, match="openai retired it on 2026-10-23; its successor is gpt-6.1-sol"):
        asked_rate(gone, DAY)
    assert teacher_rate(gone, DAY).input == 10.0, "what was paid for it is still known"
    asked_rate(teacher(provider="openai", model_name="gpt-5-mini"), date(2026, 11, 22))
    assert "gpt-5-mini retires in 19 days, on 2026-12-11; its successor is gpt-6.1-terra" in caplog.text
    told = {"retires": "never"}
    assert asked_rate(teacher(provider="openai", model_name="gpt-4-turbo", model=told), DAY).model == "gpt-4-turbo"
    soon = {"retires": "2026-11-24"}
    asked_rate(teacher(provider="openai", model_name="gpt-6-luna", model=soon), DAY)
    assert "gpt-6-luna retires in 1 day, on 2026-11-24" in caplog.text
    own = teacher(provider="openai", model_name="gpt-4-turbo", base_url="http://localhost:8000/v1")
    assert asked_rate(own, DAY).model == "gpt-4-turbo", "an endpoint of one's own retires its models itself"


def test_what_is_configured_of_a_model_stands_in_place_of_what_is_known() -> None:
    facts = {
        "temperature": False,
        "thinking": "always",
        "effort": ["low", "wild"],
        "tools": "everywhere",
        "batch": False,
        "cached_price": 0.25,
        "surcharge_above": 1000,
        "surcharge_in": 2.0,
    }
    own = {"provider": "openai", "model_name": "mine", "usd_in": 1.0, "usd_out": 2.0, "model": facts}
    rate = asked_rate(teacher(**own, effort="low", actions="auto"))
    assert (rate.shape.temperature, rate.shape.effort, rate.shape.actions) == (False, "low", "tools")
    assert (rate.shape.batch, rate.batch, rate.cached, rate.surcharge_above) == (False, 1.0, 0.25, 1000)
    with pytest.raises(UsageError, match="effort=medium: not for mine; it takes low, wild"):
        asked_rate(teacher(**own, effort="medium"))


def test_a_teacher_that_names_none_of_it_has_the_identity_that_it_had() -> None:
    """Artifacts from before these keys remain valid for such a configuration."""
    known = identity(teacher(provider="openai", model_name="gpt-6-luna"))
    assert not {"effort", "thinking", "thinking_tokens", "actions", "model"} & known.keys()
    told = identity(teacher(provider="openai", model_name="m", effort="low", model={"temperature": False}))
    assert (told["effort"], told["model"]) == ("low", {"temperature": False})


def test_what_the_user_should_know_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    module._warn.cache_clear()
    own = teacher(provider="openai", model_name="lab", usd_in=0, usd_out=0, base_url="http://h:1/v1", actions="auto")
    for _ in range(2):
        assert asked_rate(own).shape.actions == "text"
        asked_rate(teacher(provider="openai", model_name="gpt-6-luna"))
    assert caplog.text.count("lab is not known to take tool calls; its actions come as JSON in text") == 1
    assert caplog.text.count("gpt-6-luna takes no temperature with these settings") == 1
