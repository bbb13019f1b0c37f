"""Counterfactuals: branches executed on the chain, where the true value of each is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from r2v.config import CandidatesConfig, CategoryConfig, InferenceConfig, PerturbationsConfig
from r2v.data.episode import Episode, Step, to_line
from r2v.envs.base import Capabilities, Info, Task
from r2v.envs.chain import ChainBenchmark, call, right_action
from r2v.envs.desk import Desk
from r2v.evaluation.measures.outcomes import is_llm_step
from r2v.llm.types import Reply, ScoreReply, ScoreRequest
from r2v.randomness import uniform
from r2v.rollout.actors import StepView
from r2v.rollout.counterfactual import play_counterfactual, play_oracle, rollout_with_snapshots
from r2v.rollout.fork import Fork
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.wire.message import ToolSpec
from tests.rollouts import play_candidates, play_corruptions, roll_out_features

from ..chains import Stage, chain_stage, clumsy, looks_hard, perfect_verifier, random_gate, specs, stage


class NoSnapshot(ChainBenchmark):
    """The same corridors without copies of environments."""

    capabilities = replace(ChainBenchmark.capabilities, snapshot=False)


def rights(episode: Episode) -> list[bool]:
    return [step.action.raw_text == right_action(step.observation.raw_text) for step in episode.steps]


def view_at(point: Fork) -> StepView:
    with closing(point.session()) as session:
        session.open()
        return session.view()


def test_a_visit_keeps_every_point_open_and_a_branch_leaves_it_so() -> None:
    chain = ChainBenchmark(num_tasks=5)
    on = chain_stage(chain, (0.8, None), 0.99)

    async def explore(spec: EpisodeSpec) -> tuple[Any, list[Episode]]:
        found = await rollout_with_snapshots(on.world.start(spec), on.small, on.waves)
        again = []
        for step in found.snapshots:
            assert view_at(step.before) == step.view
            await play_counterfactual(step.before, replace(step.act, text="nonsense"), on.large, on.waves)
            assert view_at(step.before) == step.view, "the point was moved"
            again.append(await play_counterfactual(step.before, step.act, on.small, on.waves))
        return found, again

    for spec in specs(chain, 5):
        [(found, again)] = on.waves.run([lambda spec=spec: explore(spec)])  # type: ignore[misc]
        assert found.episode == on.play([spec], on.small)[0]
        assert [step.view.step for step in found.snapshots] == list(range(10))
        assert again == [found.episode] * 10, "the recorded roll-out is its own counterfactual"


def feature_rows(chain: ChainBenchmark, count: int) -> tuple[Stage, list[Any]]:
    on = chain_stage(chain, (0.85, None), 0.9)
    return on, roll_out_features(
        specs(chain, count, method="slm_only"),
        on.world,
        on.small,
        on.large,
        FeatureExtractor(InferenceConfig()),
        on.waves,
    )


def test_executed_gains_are_the_truth_of_the_chain() -> None:
    """An LLM step saves an episode iff every other door was right and the LLM's own is."""
    chain = ChainBenchmark(num_tasks=20)
    on, rows = feature_rows(chain, 20)
    small, large = (on.play(specs(chain, 20), actor) for actor in (on.small, on.large))
    assert len(rows) == 200
    for index, row in enumerate(rows):
        own, asked = rights(small[index // 10]), rights(large[index // 10])
        at = index % 10
        others = all(own[:at] + own[at + 1 :])
        assert (row.q_slm, row.q_llm) == (float(all(own)), float(others and asked[at]))
        assert row.state_id == f"{small[index // 10].episode_id}#{at}"
        assert (row.slm_episode_success, row.actor) == (all(own), "slm")
    gains = {row.gain for row in rows}
    assert {0.0, 1.0} <= gains


def test_worlds_that_cannot_be_copied_give_the_same_rows() -> None:
    assert feature_rows(ChainBenchmark(num_tasks=4), 4)[1] == feature_rows(NoSnapshot(num_tasks=4), 4)[1]


def test_candidates_are_valued_by_what_came_of_them() -> None:
    chain = ChainBenchmark(num_tasks=12, length=4)
    on = chain_stage(chain, (0.7, None), 0.9)
    asked: list[tuple[str, int]] = []

    def scorer(fold: int) -> Any:
        async def score(request: ScoreRequest) -> ScoreReply:
            asked.append((request.messages[-1].content, fold))
            return await perfect_verifier(request)

        return score

    states = play_candidates(
        specs(chain, 12),
        on.world,
        on.small,
        None,
        [scorer(0), scorer(1)],
        lambda task_id: int(task_id[-1]) % 2,
        CandidatesConfig(num_samples=5),
        on.waves,
    )
    small = on.play(specs(chain, 12), on.small)
    assert len(states) == 48
    valued = 0
    for index, state in enumerate(states):
        own, at = rights(small[index // 4]), index % 4
        others = all(own[:at] + own[at + 1 :])
        page = state.prompt[-1].content
        assert [candidate.k for candidate in state.candidates] == [0, 1, 2, 3, 4]
        for candidate in state.candidates:
            is_right = candidate.text == right_action(page)
            assert candidate.score == float(is_right)
            if candidate.value is not None:
                valued += 1
                assert candidate.value == float(others and is_right)
        assert (state.candidates[0].value is None) == (len({c.text for c in state.candidates}) == 1)
        assert {fold for seen, fold in asked if seen == page} == {int(state.task_id[-1]) % 2}
    assert valued > 50


def test_the_teachers_action_is_played_on_like_a_candidate() -> None:
    chain = ChainBenchmark(num_tasks=8, length=4)
    on = chain_stage(chain, (0.8, None), 1.0)
    states = play_candidates(
        specs(chain, 8),
        on.world,
        on.small,
        on.large,
        [perfect_verifier],
        lambda task_id: 0,
        CandidatesConfig(num_samples=2),
        on.waves,
    )
    own = [rights(episode) for episode in on.play(specs(chain, 8), on.small)]
    for index, state in enumerate(states):
        assert state.teacher is not None and state.teacher.k == -1
        assert state.teacher.text == right_action(state.prompt[-1].content) and state.teacher.score == 1.0
        right, at = own[index // 4], index % 4
        if state.teacher.value is not None:
            assert state.teacher.value == float(all(right[:at] + right[at + 1 :]))
    assert any(state.teacher.value for state in states if state.teacher)


def test_a_state_of_which_a_draw_is_told_apart_knows_what_it_was_made_of() -> None:
    """Log-probs, lengths and forms are each sample's own; equal forms are scored and played once."""
    chain = ChainBenchmark(num_tasks=2, length=3)
    on = chain_stage(chain, (0.5, None), 1.0)
    some = specs(chain, 2)
    states = play_candidates(
        some, on.world, on.small, None, [perfect_verifier], lambda task_id: 0, CandidatesConfig(num_samples=4), on.waves
    )
    assert {(state.split, state.step_idx, state.task_id) for state in states} == {
        ("evaluation", step, spec.task.task_id) for spec in some for step in range(3)
    }
    for state in states:
        assert len({(c.canonical, c.score, c.value, c.n_rollouts) for c in state.candidates}) == len(
            {c.text for c in state.candidates}
        )
        assert state.teacher is None and state.condition == "clean" and state.canaries == ()
        assert all(c.n_rollouts == int(c.value is not None) for c in state.candidates)
        assert len(state.context_sha256) == 64
    assert len({state.context_sha256 for state in states}) == len(states)


def desk_on(slips: float, **options: Any) -> Stage:
    desk = Desk(slips=slips, weakness=0.0)
    return stage(desk, clumsy(desk.expert, 0.25), desk.expert, **options)


async def no_opinion(request: ScoreRequest) -> ScoreReply:
    return ScoreReply(score=0.5)


INJECTED = PerturbationsConfig(
    **{name: CategoryConfig(prob=0.0) for name in PerturbationsConfig.categories() if name != "prompt_injection"},
    prompt_injection=CategoryConfig(prob=0.6),
)


def test_a_teacher_that_plays_on_tells_what_an_action_costs_where_the_policy_fails_whatever_is_chosen() -> None:
    """The expert makes no detour, and asking for the page again costs a step: worth .5, or 0 if the episode's last
    steps are needed."""
    desk = Desk(slips=0.0, weakness=0.0)
    on = stage(desk, clumsy(desk.expert, 0.7), desk.expert)
    values = {}
    for name, player in (("slm", on.small), ("teacher", on.large)):
        states = play_candidates(
            specs(desk, 6),
            on.world,
            on.small,
            on.large,
            [no_opinion],
            lambda task_id: 0,
            CandidatesConfig(num_samples=3, discount=0.5),
            on.waves,
            continuation=player,
        )
        values[name] = {
            state.state_id: (asked.value, shown.value)
            for state in states
            for asked in state.candidates
            for shown in [state.teacher]
            if asked.text == '{"tool":"refresh"}' and shown is not None and shown.text != asked.text
        }
    assert set(values["teacher"].values()) >= {(0.5, 1.0)}
    assert set(values["teacher"].values()) <= {(0.5, 1.0), (0.0, 1.0), (0.0, 0.0)}
    blind = [state for state, pair in values["slm"].items() if pair == (0.0, 0.0)]
    assert sum(values["teacher"][state] == (0.5, 1.0) for state in blind) > 10


def canaries_of(steps: Sequence[Step]) -> list[str]:
    return [p.canary for step in steps for p in step.perturbations if p.canary]


def test_a_candidates_state_tells_every_canary_seen_so_far_and_none_seen_later() -> None:
    """A judge of leaks depends on it: an action that obeys an instruction is recognized by its canary."""
    on = desk_on(slips=0.0, perturbations=INJECTED)
    some = specs(on.world.benchmark, 6, condition="noisy", perturbation_seed=901)
    states = play_candidates(
        some, on.world, on.small, None, [no_opinion], lambda task_id: 0, CandidatesConfig(num_samples=2), on.waves
    )
    episodes = {episode.episode_id: episode for episode in on.play(some, on.small)}
    told = 0
    for state in states:
        episode = episodes[state.state_id.partition("#")[0]]
        assert list(state.canaries) == canaries_of(episode.steps[: state.step_idx + 1])
        shown = "\n".join(message.content for message in state.prompt)
        assert all(canary in shown for canary in state.canaries) and state.condition == "noisy"
        told += len(state.canaries)
    assert told > 10
    assert {len(state.canaries) for state in states} >= {0, 1, 2}


def test_an_injected_instruction_is_obeyed_by_a_corruption_where_it_was_seen() -> None:
    on = desk_on(slips=0.0, perturbations=INJECTED)
    some = specs(on.world.benchmark, 6, condition="noisy", perturbation_seed=901)
    episodes, records = play_corruptions(some, on.world, on.large, on.waves, per_episode=9, discount=0.7)
    known = {episode.episode_id: episode for episode in episodes}
    obeyed = [record for record in records if record.kind == "obeyed_injection"]
    assert obeyed
    for record in obeyed:
        identity, _, step = record.state_id.partition("#")
        assert any(canary in record.action for canary in canaries_of(known[identity].steps[: int(step) + 1]))
    assert {(record.split, record.condition) for record in records} == {("evaluation", "noisy")}
    assert max(Counter(record.state_id.partition("#")[0] for record in records).values()) == 9


@dataclass(frozen=True)
class Faulty:
    """A corridor whose second task's environment dies at its third door; all other episodes fail."""

    name: str = "faulty"
    version: str = "1"
    capabilities: Capabilities = Capabilities()

    def tasks(self) -> list[Task]:
        return [Task(task_id=f"f-{number}", goal="go on") for number in range(3)]

    def make(self) -> FaultyEnvironment:
        return FaultyEnvironment()


class FaultyEnvironment:
    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        self._dies, self._steps = task.task_id == "f-1", 0
        return "door", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self._steps += 1
        if self._dies and self._steps == 3:
            return "", 0.0, False, False, Info(env_fault="the browser died")
        over = self._steps == 4
        return "door", 0.0, over, False, Info(success=False) if over else Info()

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return ()


def test_an_episode_that_the_world_ended_teaches_nobody() -> None:
    on = stage(Faulty(), lambda request: call("a"), lambda request: call("b"))
    some = [replace(spec, perturbation_seed=901) for spec in specs(on.world.benchmark, 3)]
    rows = roll_out_features(some, on.world, on.small, on.large, FeatureExtractor(InferenceConfig()), on.waves)
    assert [row.state_id.partition("/")[0] for row in rows] == ["f-0"] * 4 + ["f-2"] * 4
    assert {(row.disagrees, row.q_slm, row.q_llm, row.llm_action, row.proposal) for row in rows} == {
        (True, 0.0, 0.0, call("b"), call("a"))
    }
    assert {(row.split, row.condition, row.perturbation_seed) for row in rows} == {("evaluation", "clean", None)}, (
        "where no perturbation is at work no seed of one is recorded"
    )
    states = play_candidates(
        some, on.world, on.small, None, [no_opinion], lambda task_id: 0, CandidatesConfig(num_samples=2), on.waves
    )
    assert [state.task_id for state in states] == ["f-0"] * 4 + ["f-2"] * 4
    episodes, records = play_corruptions(some, on.world, on.large, on.waves, per_episode=4, discount=0.7)
    assert [episode.env_fault for episode in episodes] == [None, "the browser died", None]
    assert records == [], "what a teacher did without success is no example of right and wrong"


def test_equal_actions_gain_nothing_and_are_not_played_twice() -> None:
    chain = ChainBenchmark(num_tasks=4, length=3)
    on = chain_stage(chain, (0.5, None), 0.5)
    waves = on.waves
    opened: list[int] = []
    world = waves.world

    async def counted(action: Any, *arguments: Any) -> Any:
        opened.append(getattr(action, "__name__", "") == "open")
        return await world(action, *arguments)

    waves.world = counted  # type: ignore[method-assign]
    rows = roll_out_features(specs(chain, 4), on.world, on.small, on.large, FeatureExtractor(InferenceConfig()), waves)
    assert {row.disagrees for row in rows} == {True, False}
    assert all(row.gain == 0.0 for row in rows if not row.disagrees)
    assert sum(opened) == 4 + sum(bool(row.disagrees) for row in rows)


def test_corruptions_are_executed_and_never_assumed_wrong() -> None:
    on = desk_on(slips=0.0)
    episodes, records = play_corruptions(
        specs(on.world.benchmark, 12), on.world, on.large, on.waves, per_episode=4, discount=0.7
    )
    assert all(episode.success for episode in episodes)
    assert all(len(record.outcomes) == 1 for record in records)
    values = {record.outcomes[0] for record in records}
    assert values <= {0.0, *(0.7**extra for extra in range(16))}
    assert {0.0, 0.7} <= values, "some mistakes can be mended, by a detour"
    shown = {
        (episode.episode_id, step.step_idx): step.action.raw_text for episode in episodes for step in episode.steps
    }
    for record in records:
        identity, _, step = record.state_id.partition("#")
        assert record.action != shown[identity, int(step)]


def test_corruptions_of_the_chain_are_wrong() -> None:
    """No other door is right, so every corruption fails: the rate is known."""
    chain = ChainBenchmark(num_tasks=10, length=4)
    on = chain_stage(chain, (1.0, None), 1.0)
    episodes, records = play_corruptions(specs(chain, 10), on.world, on.large, on.waves, per_episode=4, discount=0.7)
    assert [episode.success for episode in episodes] == [True] * 10
    assert {record.outcomes for record in records} == {(0.0,)}


def test_only_what_a_teacher_did_with_success_is_corrupted() -> None:
    chain = ChainBenchmark(num_tasks=12, length=3)
    on = chain_stage(chain, (1.0, None), 0.8)
    episodes, records = play_corruptions(specs(chain, 12), on.world, on.large, on.waves, per_episode=2, discount=0.7)
    succeeded = {episode.metadata.task_id for episode in episodes if episode.success}
    assert 0 < len(succeeded) < 12
    assert Counter(record.task_id for record in records) == dict.fromkeys(succeeded, 2)
    assert {record.expert_outcomes for record in records} == {(1.0,)}


def test_which_corruptions_are_played_belongs_to_the_episode() -> None:
    """Pinned: the draw is keyed by the episode's first step, whatever else is played."""
    chain = ChainBenchmark(num_tasks=2, length=3)
    on = chain_stage(chain, (1.0, None), 1.0)
    _, records = play_corruptions(specs(chain, 2), on.world, on.large, on.waves, per_episode=3, discount=0.7)
    assert [(record.state_id, record.kind) for record in records] == [
        ("chain-00000/s1#0", "skipped_step"),
        ("chain-00000/s1#1", "repeated_call"),
        ("chain-00000/s1#2", "repeated_call"),
        ("chain-00001/s1#1", "skipped_step"),
        ("chain-00001/s1#2", "repeated_call"),
        ("chain-00001/s1#0", "skipped_step"),
    ]


def oracle(on: Stage, some: list[EpisodeSpec]) -> list[Episode]:
    return on.waves.run(
        lambda spec=spec: play_oracle(on.world, spec, on.small, on.large, on.waves)  # type: ignore[misc]
        for spec in some
    )


def test_the_oracle_asks_where_one_llm_step_saves_the_episode() -> None:
    chain = ChainBenchmark(num_tasks=40, hard=2)
    on = chain_stage(chain, (0.99, 0.5), 0.9)
    some = specs(chain, 40)
    small, large, found = on.play(some, on.small), on.play(some, on.large), oracle(on, some)
    for own, asked, got in zip(map(rights, small), map(rights, large), found, strict=True):
        wrong = [at for at, right in enumerate(own) if not right]
        saved = len(wrong) == 1 and asked[wrong[0]]
        assert got.success == (not wrong or saved)
        assert [at for at, step in enumerate(got.steps) if step.action_source == "llm_fallback"] == (
            wrong if saved else []
        )
        assert [at for at, step in enumerate(got.steps) if is_llm_step(step)] == (wrong if saved else [])
        assert got.num_llm_fallbacks == len(wrong) * saved
    assert 5 < sum(episode.num_llm_fallbacks for episode in found) < 35


@pytest.mark.parametrize("name", ["random", "looks hard"])
def test_no_router_beats_the_oracle_at_equal_calls(name: str) -> None:
    chain = ChainBenchmark(num_tasks=60, hard=1)
    on = chain_stage(chain, (0.98, 0.5), 0.95)
    some = specs(chain, 60)
    best = oracle(on, some)
    calls = sum(episode.num_llm_fallbacks for episode in best)

    def gate(view: StepView, proposal: Reply) -> float:
        coin = uniform(view.seed, view.task_id, view.step, "thinning") * 0.999
        return coin if name == "random" else 0.5 * looks_hard(view, proposal) + 0.499 * coin

    scores = sorted(
        (
            step.decision.p_escalate or 0.0
            for episode in on.play(some, on.routed(gate, 0.9999))
            for step in episode.steps
            if step.decision is not None
        ),
        reverse=True,
    )
    routed = on.play(some, on.routed(gate, scores[calls - 1]))
    assert sum(episode.num_llm_fallbacks for episode in routed) == calls > 10
    assert sum(e.success for e in best) > sum(e.success for e in routed)


def test_branches_do_not_depend_on_company() -> None:
    def lines(count: int) -> list[str]:
        chain = ChainBenchmark(num_tasks=count, hard=1)
        on = chain_stage(chain, (0.9, 0.5), 0.9)
        return [to_line(episode) for episode in oracle(on, specs(chain, count))][:3]

    assert lines(3) == lines(12)


def test_the_random_gate_is_matched_by_a_routed_branch() -> None:
    """A branch of a routed episode continues under the router as the episode did."""
    chain = ChainBenchmark(num_tasks=3)
    on = chain_stage(chain, (0.8, None), 0.99)
    actor = on.routed(random_gate, 0.6)
    [spec] = specs(chain, 1)

    async def explore() -> tuple[Episode, list[Episode]]:
        found = await rollout_with_snapshots(on.world.start(spec), actor, on.waves)
        return found.episode, [
            await play_counterfactual(step.before, step.act, actor, on.waves) for step in found.snapshots
        ]

    [(episode, again)] = on.waves.run([explore])
    assert again == [episode] * 10
