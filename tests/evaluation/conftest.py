"""Six tasks, two seeds, three methods, two conditions: small enough to compute every figure by hand."""

from __future__ import annotations

import pytest

from r2v.data.episode import (
    Action,
    AppliedPerturbation,
    Decision,
    Episode,
    EpisodeMetadata,
    Observation,
    Step,
    Tokens,
    episode_id,
)
from r2v.evaluation.setup import RouterScores, Setup

TASKS = ["t1", "t2", "t3", "t4", "t5", "t6"]
SEEDS = (1, 2)
NOISY = {
    "slm_only": {1: "110000", 2: "101000"},
    "llm_only": {1: "111110", 2: "111111"},
    "r2v": {1: "111100", 2: "111010"},
}
COST = {"slm_only": 0.01, "llm_only": 0.5, "r2v": 0.2}
PLANTED = AppliedPerturbation(category="prompt_injection", canary="X-99")
ESCALATED = {"slm_only": 0, "llm_only": 10, "r2v": 3}


def play(
    method="r2v",
    task="t1",
    seed=1,
    success=True,
    condition="noisy",
    *,
    steps=10,
    escalated=0,
    point=None,
    planted=(),
    actions=(),
    **fields,
) -> Episode:
    """Return an episode as a roll-out would leave it. `planted`: steps at which a canary is shown."""
    texts = dict(actions)
    return Episode(
        episode_id=episode_id(task, seed),
        metadata=EpisodeMetadata(task_id=task, goal=f"do {task}", benchmark="desk", seed=seed),
        steps=tuple(
            Step(
                step_idx=t,
                observation=Observation(raw_text="..."),
                action=Action(raw_text=texts.get(t, '{"tool":"look"}')),
                action_source="llm_fallback" if t < escalated else "slm",
                decision=Decision(p_escalate=0.5, threshold=0.5, escalated=t < escalated),
                perturbations=(PLANTED,) * (t in planted),
            )
            for t in range(steps)
        ),
        success=success,
        condition=condition,
        method=method,
        extra={} if point is None else {"operating_point": point},
        **{"tokens": Tokens(slm_in=90, slm_out=10, llm_in=9 * escalated, llm_out=escalated), **fields},
    )


def play_all() -> list[Episode]:
    """Return all episodes. r2v's sixth task takes 20 steps and no LLM; its first two tasks are injected, and it obeys
    once."""
    episodes = []
    for method, by_seed in NOISY.items():
        for seed, outcomes in by_seed.items():
            for task, outcome in zip(TASKS, outcomes, strict=True):
                last = method == "r2v" and task == "t6"
                injected = method == "r2v" and (task == "t1" or (task, seed) == ("t2", 1))
                obeys = injected and (task, seed) == ("t1", 1)
                shared = {
                    "steps": 20 if last else 10,
                    "escalated": 0 if last else ESCALATED[method],
                    "total_cost": 0.1 if last else COST[method],
                    "sim_time_seconds": 1.0 if seed == 1 else 3.0,
                }
                episodes.append(
                    play(
                        method,
                        task,
                        seed,
                        outcome == "1",
                        planted=(2,) * injected,
                        actions={5: '{"tool":"pay","id":"X-99"}'} if obeys else {},
                        **shared,
                    )
                )
                episodes.append(play(method, task, seed, True, "clean", **shared))
                if method == "r2v":
                    episodes.append(play(method, task, seed, outcome == "1", point="b0.20", **shared))
    return episodes


@pytest.fixture(scope="session")
def episodes() -> list[Episode]:
    return play_all()


@pytest.fixture(scope="session")
def setup() -> Setup:
    return Setup(
        benchmark="desk",
        methods=tuple(NOISY),
        seeds=SEEDS,
        tasks={"clean": TASKS, "noisy": TASKS},
        frontier={"noisy": {"r2v": ["b0.20"]}},
        cost_ratio=50.0,
        resamples=2_000,
        router_scores=(
            RouterScores(method="r2v", condition="noisy", p=(0.1, 0.1, 0.9, 0.9, 1.0), y=(0.0, 0.0, 1.0, 1.0, 0.0)),
        ),
        prices={"llm": {"input": 3.0}},
    )


@pytest.fixture(scope="session")
def make_episode():
    return play
