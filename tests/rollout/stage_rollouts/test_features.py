"""Policy iteration's rows: for either actor both actions are executed, and the same actor continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from r2v.config import InferenceConfig
from r2v.envs.chain import ChainBenchmark, right_action
from r2v.rollout.gates import FeatureExtractor
from r2v.rollout.session import EpisodeSpec
from r2v.rollout.stage_rollouts.features import FeatureRollout, rows_of
from r2v.rollout.work_queue import measured
from r2v.router.labels import FeatureRow, check_rows, labelled
from tests.rollouts import MemoryPlayer

from ...chains import Stage, chain_stage, random_gate, specs

THRESHOLD = 0.6


def rows_played(on: Stage, some: Sequence[EpisodeSpec], **fields: Any) -> list[FeatureRow]:
    rollout = FeatureRollout(
        world=on.world,
        slm=on.small,
        llm=on.large,
        extractor=FeatureExtractor(InferenceConfig()),
        waves=on.waves,
        **fields,
    )
    return list(rows_of(measured(rollout.cell(some), MemoryPlayer(on.waves))))


def routed_rows(on: Stage, some: Sequence[EpisodeSpec], most: int = 1000, **fields: Any) -> list[FeatureRow]:
    pair = on.routed(random_gate, THRESHOLD, most)
    return rows_played(on, some, routed=pair, threshold=THRESHOLD, number=1, **fields)


def rights(episode: Any) -> list[bool]:
    return [step.action.raw_text == right_action(step.observation.raw_text) for step in episode.steps]


def test_a_routed_states_gain_is_the_truth_of_the_chain_where_the_pair_plays_on() -> None:
    chain = ChainBenchmark(num_tasks=20, length=5)
    on = chain_stage(chain, (0.6, None), 0.95)
    some = specs(chain, 20)
    small, large = (list(map(rights, on.play(some, actor))) for actor in (on.small, on.large))
    played = on.play(some, on.routed(random_gate, THRESHOLD))
    rows = routed_rows(on, some)
    assert len(rows) == 100 and {row.actor for row in rows} == {"slm", "llm_fallback"}
    for index, row in enumerate(rows):
        task, at = divmod(index, 5)
        asked = [step.action_source == "llm_fallback" for step in played[task].steps]
        mixed = [large[task][step] if asked[step] else small[task][step] for step in range(5)]
        others = all(mixed[:at] + mixed[at + 1 :])
        assert (row.q_slm, row.q_llm) == (others and small[task][at], others and large[task][at])
        assert row.actor == ("llm_fallback" if asked[at] else "slm") and row.slm_episode_success is None
        assert row.cost_llm > row.cost_slm, "on the chain an LLM step spares no other"
        assert (row.cost_llm if asked[at] else row.cost_slm) == played[task].billed_cost
        assert (row.round, row.threshold, row.state_id) == (1, THRESHOLD, f"{played[task].episode_id}#{at}@1")
    assert {0.0, 1.0} <= {row.gain for row in rows if row.actor == "slm"}
    assert {0.0, 1.0} <= {row.gain for row in rows if row.actor == "llm_fallback"}


def test_a_row_says_what_was_spent_for_it() -> None:
    chain = ChainBenchmark(num_tasks=6, length=5)
    differing = rows_played(chain_stage(chain, (0.0, None), 1.0), specs(chain, 6))
    assert all(row.disagrees for row in differing)
    for first, *_, last in zip(*[iter(differing)] * 5, strict=True):
        assert first.spent == pytest.approx(first.cost_llm), "all of the other path, for nothing was before"
        assert 0 < last.cost_llm - last.cost_slm < last.spent < last.cost_llm, "its step and a proposal, nothing behind"
    alike = rows_played(chain_stage(chain, (1.0, None), 1.0), specs(chain, 6))
    for rows in zip(*[iter(alike)] * 5, strict=True):
        proposals = sum(row.cost_llm - row.cost_slm for row in rows)
        assert sum(row.spent for row in rows) == pytest.approx(rows[0].cost_slm + proposals), (
            "the episode, and opinions"
        )


def test_where_no_call_is_left_there_is_nothing_to_decide() -> None:
    chain = ChainBenchmark(num_tasks=6, length=5)
    on = chain_stage(chain, (0.6, None), 0.95)
    on = replace(on, world=replace(on.world, inference=replace(on.world.inference, max_llm_calls=1)))
    played = on.play(specs(chain, 6), on.routed(random_gate, THRESHOLD, 1))
    rows = Counter(row.episode_id for row in routed_rows(on, specs(chain, 6), most=1))
    for episode in played:
        sources = [step.action_source for step in episode.steps]
        decided = sources.index("llm_fallback") + 1 if "llm_fallback" in sources else 5
        assert rows[episode.episode_id] == decided
    assert min(rows.values()) < 5


def test_a_router_takes_rows_of_both_kinds_and_refuses_what_was_not_executed() -> None:
    chain = ChainBenchmark(num_tasks=8, length=5)
    on = chain_stage(chain, (0.6, None), 0.95)
    some = [replace(spec, split="train" if index % 2 else "calibration") for index, spec in enumerate(specs(chain, 8))]
    rows = [*rows_played(on, some), *routed_rows(on, some)]
    check_rows(labelled(rows, "counterfactual"))
    assert {row.round for row in labelled(rows, "episode")} == {0}
