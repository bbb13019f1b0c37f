"""Cloning, preference training, the verifier and acting tell a model of the same tools, in the same ids."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v import config as c
from r2v.envs.base import Benchmark, Capabilities, Info, Task, load_benchmark, tools_of
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.llm.local.backend import LocalBackend
from r2v.llm.waves import Waves
from r2v.policy.export import export
from r2v.policy.load import Loaded, load_policy
from r2v.policy.prompt_encoder import build_messages
from r2v.policy.training_tools import recorded
from r2v.rollout.model_factory import (
    WIDEST,
    conversations_of,
    engine,
    priced_policy,
    scoring_encoder,
    told_tools,
    verifier_scorer,
)
from r2v.stages.train_policy import BCSettings, PreferenceSettings, _encoder
from tests import tiny_models
from tests.chains import specs, stage
from tests.counted import Counted, CountedEnvironment, straight_on
from tests.llm.engines.stub_server import stub_engine
from tests.policy.chat_templates import TEMPLATES, tokenizer
from tests.served_models import base_model, served_config, verifiers


@pytest.mark.parametrize(("template", "native"), [("qwen2_5", True), ("phi3", False)])
def test_training_acting_and_scoring_make_the_same_prompts(
    template: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokenizer(TEMPLATES[template])
    model = tiny_models.model(len(made), 0, torch.float32)
    export(Loaded(model=model, tokenizer=made, name="base"), tmp_path / "base")
    config = c.load(None, [f"policy.model_name={tmp_path / 'base'}", "policy.device=cpu", "policy.max_seq_len=20000"])
    benchmark = load_benchmark(config.env.benchmark)
    loaded = load_policy(config.policy)
    acting: list[LocalBackend] = []

    def noted(self: LocalBackend, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        acting.append(self)

    original = LocalBackend.__init__
    monkeypatch.setattr(LocalBackend, "__init__", noted)
    tools, waves = told_tools(config.policy, benchmark), Waves(workers=1, max_conversations=1)
    priced_policy(config.policy, None, config.cost, config.inference, config.rollout, waves, tools)
    score = scoring_encoder(loaded.tokenizer, config.policy, config.inference, tools)

    messages = build_messages("close ticket t1", ["the inbox", "a ticket"], ['{"tool":"open"}'])
    bc, preference = (_encoder(kind.of(config), loaded, recorded(tools)) for kind in (BCSettings, PreferenceSettings))
    prompt = bc(messages)
    assert prompt == preference(messages) == acting[0].encode(messages)
    assert score(messages, "{}") == prompt + bc.action_ids("{}")
    text = made.decode(prompt)
    assert all(spec.name in text and spec.description in text for spec in Desk().make().tool_specs())
    assert bc.template.native_tools == native


def test_the_bundled_student_is_told_none_and_keeps_its_fingerprint() -> None:
    config = c.load(None, [])
    for settings in (BCSettings.of(config), PreferenceSettings.of(config)):
        assert settings.env is None
        assert {"env", "tools", "enable_thinking"}.isdisjoint({*c.identity(settings), *c.identity(settings.policy)})
    assert told_tools(config.policy, Desk()) == ()


def test_another_model_has_its_tools_in_the_fingerprint() -> None:
    told = BCSettings.of(c.load(None, ["policy.model_name=some/model", "env.benchmark=chain"]))
    untold = BCSettings.of(c.load(None, ["policy.model_name=some/model", "policy.tools=none"]))
    assert c.identity(told)["env"]["benchmark"] == "chain" and c.identity(told)["policy"]["tools"] == "auto"
    assert "env" not in c.identity(untold) and c.identity(untold)["policy"]["tools"] == "none"


def test_cloning_under_another_form_of_thoughts_is_another_clone() -> None:
    for kind in (BCSettings, PreferenceSettings):
        forms = [
            c.identity(kind.of(c.load(None, ["policy.model_name=some/model", *override])))
            for override in ([], ["policy.enable_thinking=false"], ["policy.enable_thinking=true"])
        ]
        assert forms[0] == forms[1] != forms[2]


def test_a_world_that_cannot_say_its_tools_is_one_sentence() -> None:
    class Mute:
        name, version, capabilities = "mute", "1", Desk().capabilities

        def tasks(self) -> list[Task]:
            return [Task(task_id="t", goal="go")]

        def make(self) -> Any:
            raise RuntimeError("no\nbrowser")

    mute: Benchmark = Mute()
    with pytest.raises(UsageError, match=r"mute: a fresh world does not say its tools \(RuntimeError: no browser\)"):
        tools_of(mute)


@pytest.mark.parametrize("declares", ["waits", "needs_network"])
def test_worlds_that_wait_step_side_by_side(declares: str) -> None:
    """All 64 conversations are in a step at the same time, or the barrier breaks and the worlds with it."""
    together = threading.Barrier(64, timeout=300)

    class Waiting(CountedEnvironment):
        def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
            together.wait()
            return super().step(action)

    class WaitingWorlds(Counted):
        def make(self) -> Waiting:
            self.census.born()
            return Waiting(self)

    worlds = WaitingWorlds(length=2, capabilities=Capabilities(**{declares: True}))
    on = stage(worlds, straight_on, straight_on, waves=engine(c.RolloutConfig(), worlds))
    episodes = on.play(specs(worlds, 64), on.small)
    assert [episode.env_fault for episode in episodes] == [None] * 64
    assert all(episode.success for episode in episodes) and worlds.census.peak == 64


@pytest.mark.parametrize(
    ("overrides", "worlds", "width"),
    [
        ([], Capabilities(), 64),
        (["teacher.provider=openai"], Capabilities(), WIDEST),
        (["teacher.provider=openai", "teacher.mode=concurrent"], Capabilities(), 64),
        (["teacher.provider=openai", "teacher.mode=concurrent", "teacher.max_concurrent=100"], Capabilities(), 200),
        (["teacher.provider=openai"], Capabilities(waits=True), 64),
        (["teacher.provider=openai"], Capabilities(needs_network=True), 64),
        (["teacher.provider=openai"], Capabilities(parallel=False), 64),
        (["teacher.provider=openai", "teacher.max_conversations=7"], Capabilities(waits=True), 7),
        (["teacher.provider=openai", "rollout.max_conversations=9000"], Capabilities(), 9000),
    ],
)
def test_a_providers_conversations_are_not_as_few_as_a_local_models(
    overrides: list[str], worlds: Capabilities, width: int
) -> None:
    """A barrier of 1,000 conversations took 8 hours where 64 at a time took 103."""
    config = c.load(None, overrides)

    benchmark = Counted(length=2, capabilities=worlds)
    assert conversations_of(config.rollout, benchmark, config.teacher) == width
    assert conversations_of(config.rollout, benchmark, None) == config.rollout.max_conversations


def test_a_served_verifier_reads_with_the_tokenizer_of_its_base(tmp_path: Path) -> None:
    """Its folder holds adapters and a head, and no tokenizer."""
    base = base_model(tmp_path / "base")
    verifiers(served_config(base), [tmp_path / "fold"])
    assert not list((tmp_path / "fold").glob("tokenizer*"))
    serving = {"engine": "vllm", "engine_verifier": True, "engine_venv": str(stub_engine(tmp_path / "engine"))}
    policy = served_config(base, device="cpu", engine_memory=0.4, **serving)
    assert callable(verifier_scorer(policy, tmp_path / "fold", c.InferenceConfig(), c.RolloutConfig(), Waves()))
