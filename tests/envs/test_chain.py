"""Chain: closed forms, and what is executed agrees with them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from r2v.envs.base import Benchmark, Demonstrated, Snapshots
from r2v.envs.chain import ChainBenchmark, Expert, call, chain_actor, right_action
from r2v.llm.types import Message, Request
from r2v.randomness import uniform


def mixture(p_slm: float, p_llm: float, rate: float) -> float:
    """Accuracy of a step that goes to the LLM with chance `rate`, whatever the step."""
    return (1 - rate) * p_slm + rate * p_llm


def best_of(p: float, k: int) -> float:
    """Accuracy of a step where a perfect verifier picks among `k` independent samples."""
    return 1 - (1 - p) ** k


def success_rate(steps: Iterable[tuple[int, float]]) -> float:
    """Chance that all of (count, accuracy) independent steps are right: prod p^n."""
    return math.prod(p**count for count, p in steps)


def wilson(successes: int, n: int, z: float = 3.2905) -> tuple[float, float]:
    """Wilson interval; z = 3.2905 is 99.9 %."""
    p = successes / n
    centre, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def play(chain: ChainBenchmark, actors: dict[str, Expert], choose: object, tasks: int) -> tuple[int, int]:
    """Execute episodes; (successes, steps taken by the LLM)."""
    won = calls = 0
    for task in chain.tasks()[:tasks]:
        env = chain.make()
        page, info = env.reset(seed=0, task=task)
        step, over = 0, False
        while not over:
            actor = choose(page, task.task_id, step)  # type: ignore[operator]
            calls += actor == "llm"
            messages = (Message(role="user", content=task.goal), Message(role="tool", content=page))
            request = Request(messages=messages, key=(0, task.task_id, step, actor))
            page, _, over, _, info = env.step(actors[actor](request))
            step += 1
        won += bool(info.success)
    return won, calls


CLOSED = [
    ("slm_only", success_rate([(10, 0.95)]), 0.598737),
    ("llm_only", success_rate([(10, 0.995)]), 0.951110),
    ("random .1", success_rate([(10, mixture(0.95, 0.995, 0.1))]), 0.627710),
    ("random .3", success_rate([(10, mixture(0.95, 0.995, 0.3))]), 0.689473),
    ("random .5", success_rate([(10, mixture(0.95, 0.995, 0.5))]), 0.756652),
    ("two slm", success_rate([(8, 0.99), (2, 0.5)]), 0.230686),
    ("two llm", success_rate([(10, 0.99)]), 0.904382),
    ("two random .2", success_rate([(8, 0.99), (2, mixture(0.5, 0.99, 0.2))]), 0.329977),
    *(
        (f"two best of {k}", success_rate([(8, best_of(0.99, k)), (2, best_of(0.5, k))]), known)
        for k, known in ((1, 0.230686), (2, 0.562050), (4, 0.878906), (8, 0.992203))
    ),
]


@pytest.mark.parametrize(("name", "formula", "known"), CLOSED, ids=[row[0] for row in CLOSED])
def test_closed_forms(name: str, formula: float, known: float) -> None:
    assert formula == pytest.approx(known, abs=5e-7)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_executed_routing_agrees_with_the_closed_form(rate: float) -> None:
    actors = {"slm": chain_actor(0.95), "llm": chain_actor(0.995)}
    won, _ = play(
        ChainBenchmark(num_tasks=1000),
        actors,
        lambda page, task, step: "llm" if uniform("q", task, step) < rate else "slm",
        1000,
    )
    low, high = wilson(won, 1000)
    assert low <= success_rate([(10, mixture(0.95, 0.995, rate))]) <= high
    assert high < 0.86 or rate > 0.5, "the any-step rule would print .860 at q = .1"


def test_a_router_that_reads_difficulty_reaches_the_llm_at_a_fifth_of_its_calls() -> None:
    actors = {"slm": chain_actor(0.99, 0.5), "llm": chain_actor(0.99)}
    won, calls = play(
        ChainBenchmark(num_tasks=600, hard=2),
        actors,
        lambda page, task, step: "llm" if '"look":"hard"' in page else "slm",
        600,
    )
    low, high = wilson(won, 600)
    assert low <= 0.904382 <= high
    assert calls == 600 * 2


def test_success_comes_from_executed_actions_only() -> None:
    chain = ChainBenchmark(num_tasks=1, length=3)
    env = chain.make()
    page, _ = env.reset(seed=0, task=chain.tasks()[0])
    right = right_action(page)
    wrong = next(call(door) for door in "abcd" if call(door) != right)
    page, _, _, _, _ = env.step(wrong)
    for _ in range(2):
        page, reward, over, _, info = env.step(right_action(page))
    assert (over, info.success, reward) == (True, False, 0.0)
    assert info.partial_score == pytest.approx(2 / 3)
    with pytest.raises(RuntimeError, match="reset first"):
        env.step(right)


def test_snapshot_restores_and_other_seeds_ask_other_questions() -> None:
    chain = ChainBenchmark(num_tasks=2)
    assert isinstance(chain, Benchmark)
    assert isinstance(chain, Demonstrated)
    env, other = chain.make(), chain.make()
    assert isinstance(env, Snapshots)
    first, _ = env.reset(seed=0, task=chain.tasks()[0])
    state = env.snapshot()
    second, *_ = env.step(right_action(first))
    other.restore(state)
    assert other.step(right_action(first))[0] == second
    assert env.reset(seed=1, task=chain.tasks()[0])[0] != first
