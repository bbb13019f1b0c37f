"""Policy, Verifier and Router called from Python give the same results as in the evaluation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from r2v import Bundle, Message, Pipeline, Policy, Router, Verifier, load_config
from r2v.config import TaskSelection
from r2v.envs.desk import Desk
from r2v.errors import InputError, UsageError
from r2v.llm.providers.bodies import system_prompt
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.rollout.actors import Routed, StepView
from r2v.rollout.session import RolloutWorld, episode_specs
from r2v.serve.bundle.play_bundle import bundle_settings, local_pair, routed_actor
from r2v.wire import chat
from tests.trust import MICRO

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def bundle(micro_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    pipeline = Pipeline(load_config(str(MICRO)), root=micro_run)
    return pipeline.export(tmp_path_factory.mktemp("bundles") / "desk")


def steps(bundle: Bundle, count: int) -> Iterator[tuple[StepView, Routed]]:
    """Yield the steps that the routed pair reaches, and the pair's results."""
    config, waves = load_config(str(MICRO)), Waves(workers=1)
    desk = Desk(**config.env.options)
    actor = routed_actor(bundle, desk, waves)
    assert isinstance(actor, Routed)
    world = RolloutWorld(desk, config.perturbations, config.inference)
    selection = TaskSelection.evaluation(config, "noisy")
    for spec in episode_specs(desk, "evaluation", [1], selection, method="r2v", limit=3):
        session = world.start(spec)
        session.open()
        while session.termination is None and count:
            view, count = session.view(), count - 1
            yield view, actor
            session.apply(asyncio.run(actor.act(view)))


def conversation(view: StepView) -> list[Message]:
    """Return the conversation of an agent whose tools are described in words."""
    told = Message(role="system", content=system_prompt((), view.tools, "text"))
    shown = (message if message.role == "assistant" else replace(message, role="user") for message in view.messages)
    return [told, *shown]


def test_a_policy_acts_as_in_the_evaluation(bundle: Bundle, micro_run: Path) -> None:
    from_bundle = Policy.load(bundle.folder)
    from_stage = Policy.load(micro_run / "outputs" / "micro" / "policy" / "preference")
    for view, actor in steps(bundle, 5):
        said = asyncio.run(actor.slm.ask(view)).text
        messages = [chat.write_message(message) for message in conversation(view)]
        tools = [chat.write_tool(tool) for tool in view.tools]
        for turn in (
            asyncio.run(from_bundle.act(messages, tools)),
            asyncio.run(from_stage.act(conversation(view), view.tools)),
        ):
            assert turn.role == "assistant" and json.loads(turn.text) == json.loads(said)


def test_a_verifier_scores_as_in_the_evaluation(bundle: Bundle, micro_run: Path) -> None:
    verifiers = Verifier.load(bundle.folder), Verifier.load(micro_run / "outputs" / "micro" / "verifier")
    desk, waves = Desk(**load_config(str(MICRO)).env.options), Waves(workers=1)
    for view, _ in steps(bundle, 2):
        scorer = local_pair(bundle, bundle_settings(bundle), waves, load_config().rollout, view.tools)[1]
        assert scorer is not None and desk.name == "desk"
        asked = ScoreRequest(messages=view.messages, action='{"tool":"finish"}')
        theirs = asyncio.run(scorer.scorer(asked)).score
        for verifier in verifiers:
            mine = asyncio.run(verifier.score(conversation(view), '{"tool":"finish"}', view.tools))
            assert mine == pytest.approx(theirs, abs=1e-9)


def test_a_router_decides_as_in_the_evaluation(bundle: Bundle) -> None:
    router = Router.load(bundle.folder)
    for view, actor in steps(bundle, 6):
        theirs = asyncio.run(actor.act(view)).decision
        mine = asyncio.run(router.decide(conversation(view)))
        assert theirs is not None and mine.reason == "score"
        assert (mine.score, mine.threshold) == (theirs.p_escalate, bundle.manifest.threshold)
        assert (mine.source == "llm") == theirs.escalated == (mine.turn is None)
        again = asyncio.run(router.decide(conversation(view)))
        assert (again.source, again.reason) == (mine.source, "repeat")
        assert asyncio.run(Router.load(bundle.folder).decide(conversation(view), budget=0.0)).source == "small"


def test_a_conversation_with_other_tools_goes_to_the_llm(bundle: Bundle) -> None:
    (view, _), *_ = steps(bundle, 1)
    tool = {"type": "function", "function": {"name": "drop_database", "parameters": {"type": "object"}}}
    decision = asyncio.run(Router.load(bundle.folder).decide(conversation(view), [tool]))
    assert (decision.source, decision.reason, decision.turn) == ("llm", "unknown tool drop_database", None)


@pytest.mark.parametrize(
    "messages,why",
    [
        ([], "messages: empty"),
        ([{"role": "nobody", "content": "x"}], "messages or tools: not as Chat Completions writes them"),
        ("hello", "each is a dictionary or a Message or ToolSpec, got 'h'"),
        ([{"role": "assistant", "content": "x"}], "messages: no words of the user before the first turn"),
    ],
)
def test_what_is_no_conversation_is_refused_in_a_line(messages: list[dict[str, str]], why: str, bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=why):
        asyncio.run(Policy.load(bundle.folder).act(messages))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Policy.load(tmp_path)


def test_in_a_notebook_each_cell_asks_again(bundle: Bundle) -> None:
    """Two questions in one running event loop, as in two cells, and one from the next notebook."""
    (view, _), *_ = steps(bundle, 1)
    policy = Policy.load(bundle.folder)

    async def cells() -> tuple[Message, Message]:
        return await policy.act(conversation(view), view.tools), await policy.act(conversation(view), view.tools)

    first, second = asyncio.run(cells())
    assert first.text == second.text == asyncio.run(policy.act(conversation(view), view.tools)).text


def test_a_folder_of_another_stage_is_refused(micro_run: Path) -> None:
    with pytest.raises(InputError, match="holds no policy, it was made by r2v.stages.train_verifier"):
        Policy.load(micro_run / "outputs" / "micro" / "verifier")
    with pytest.raises(InputError, match="holds no verifier"):
        Verifier.load(micro_run / "outputs" / "micro" / "policy" / "bc")
