"""Cloning, preference training, the verifier and acting give a model the same tools, in the same ids."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v import config as c
from r2v.config import CostConfig, TeacherConfig
from r2v.envs.base import Benchmark, Capabilities, Info, Task, load_benchmark, tools_of
from r2v.envs.desk import Desk
from r2v.errors import UsageError
from r2v.llm.local.backend import LocalBackend
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.policy.export import export
from r2v.policy.half_elision import ELIDED
from r2v.policy.load import Loaded, load_policy
from r2v.policy.prompt_encoder import build_messages
from r2v.policy.training_tools import recorded
from r2v.rollout.model_factory import (
    BYTES,
    WIDEST,
    FittedModel,
    conversations_of,
    engine,
    estimated,
    fitted,
    priced_policy,
    priced_teacher,
    scoring_encoder,
    told_tools,
    verifier_scorer,
)
from r2v.stages.train_policy import BCSettings, PreferenceSettings, _encoder
from r2v.wire.message import Message, ToolSpec
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
    with pytest.raises(UsageError, match=r"mute: a fresh world does not list its tools \(RuntimeError: no browser\)"):
        tools_of(mute)


@pytest.mark.parametrize("declares", ["waits", "needs_network"])
def test_worlds_that_wait_step_side_by_side(declares: str) -> None:
    """All 64 conversations are in a step at the same time, or the barrier breaks and the environments with it."""
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


# The LLM's context: it fits by the estimate, has the prefix of the former one, and names the omitted messages.

LIVING = {"retires": "never"}
TOOLS = (ToolSpec(name="click", description="Click on an element."),)


def _request(pages: Sequence[str], tools: tuple[ToolSpec, ...] = TOOLS) -> Request:
    messages = build_messages("buy a lamp", pages, ["click [1]"] * (len(pages) - 1))
    return Request(messages=messages, key=(), tools=tools, max_tokens=100)


def _tokens(messages: Sequence[Message]) -> int:
    return sum(map(estimated, messages))


def test_what_fits_is_sent_as_it_is() -> None:
    request = _request(["page"] * 3)
    assert fitted(request, 1000) is request


def test_a_longer_conversation_keeps_its_beginning_from_step_to_step() -> None:
    pages = [f"page {i} " + "é" * 900 for i in range(30)]
    sent = [fitted(_request(pages[: t + 1]), 6000).messages for t in range(30)]
    assert all(_tokens(messages) <= 5900 for messages in sent)
    assert all(messages[-1].content == page for messages, page in zip(sent, pages, strict=True))
    assert sum(b[: len(a)] == a for a, b in pairwise(sent)) >= 23
    assert any(message.content == ELIDED for message in sent[-1])
    assert fitted(_request(pages), 6000).messages == sent[-1], "the same cut at once"


def test_a_page_that_is_too_long_has_its_middle_cut_and_says_so() -> None:
    page = "begin " + "ü" * 60_000 + " end"
    shown = fitted(_request([page, page]), 5000).messages
    assert shown[1].content == ELIDED and f"\n{ELIDED}\n" in shown[-1].content
    assert shown[-1].content.startswith("begin ü") and shown[-1].content.endswith("ü end")
    assert 0.9 * 4900 < _tokens(shown) <= 4900


def test_a_goal_that_is_too_long_is_left_to_the_provider() -> None:
    request = Request(messages=(Message(role="user", content="x" * 9000),), key=(), max_tokens=100)
    assert fitted(request, 1024) is request
    with_page = Request(messages=(*request.messages, Message(role="tool", content="y" * 9000)), key=(), max_tokens=100)
    assert fitted(with_page, 1024) is with_page


def test_tools_and_the_reply_take_their_part_of_the_context() -> None:
    pages = ["p" * 300] * 5
    size = _tokens(_request(pages).messages)
    many = tuple(ToolSpec(name=f"tool{i}", description="d" * 60) for i in range(10))
    context = size + 100 + 200
    assert fitted(_request(pages), context).messages == _request(pages).messages
    assert len(fitted(_request(pages, many), context).messages[1].content) < 300


class _Remembering:
    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def reply(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(samples=(Sample(text="click [1]"),), usage=Usage(), model="m")


def test_the_model_is_asked_what_fits_and_nothing_else_changes() -> None:
    inner = _Remembering()
    request = _request(["p" * 4000] * 6)
    asyncio.run(FittedModel(inner, 3000, "m").reply(request))
    assert inner.asked == [fitted(request, 3000)] and inner.asked[0].messages != request.messages
    assert (inner.asked[0].tools, inner.asked[0].max_tokens) == (request.tools, request.max_tokens)


@pytest.mark.parametrize(
    ("given", "context"),
    [({}, 128_000), ({"context": 9_000}, 9_000), ({"model_name": "m", "usd_in": 1.0, "usd_out": 1.0}, None)],
)
def test_the_context_is_the_one_given_or_the_tables(
    given: dict[str, object], context: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    teacher = TeacherConfig(**{"provider": "openai", "model_name": "gpt-4o", "model": LIVING, **given})  # type: ignore[arg-type]
    model = priced_teacher(teacher, CostConfig(), Desk(num_tasks=60, num_heldout=0), Waves()).model
    assert (model.context if isinstance(model, FittedModel) else None) == context


def test_three_bytes_are_a_token() -> None:
    assert (
        estimated(Message(role="tool", content="é" * 30)) - estimated(Message(role="tool", content="")) == 60 // BYTES
    )
