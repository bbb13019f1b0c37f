"""Chain: closed-form success rates, and executed episodes agree with them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest

from r2v.envs.base import Benchmark, Demonstrated, Snapshots
from r2v.envs.chain import ChainBenchmark, Expert, call, chain_actor, right_action
from r2v.evaluation.measures.frontier import Curve
from r2v.llm.types import Request
from r2v.randomness import uniform
from r2v.wire.message import Message


def mixture(p_slm: float, p_llm: float, rate: float) -> float:
    """Return the accuracy of a step that goes to the LLM with probability `rate`."""
    return (1 - rate) * p_slm + rate * p_llm


def success_rate(steps: Iterable[tuple[int, float]]) -> float:
    """Return the probability that all of (count, accuracy) independent steps are right: prod p^n."""
    return math.prod(p**count for count, p in steps)


def wilson(successes: int, n: int, z: float = 3.2905) -> tuple[float, float]:
    """Return the Wilson interval; z = 3.2905 is 99.9 %."""
    p = successes / n
    centre, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def play(chain: ChainBenchmark, actors: dict[str, Expert], choose: object, tasks: int) -> tuple[int, int]:
    """Execute episodes; return (successes, steps taken by the LLM)."""
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


RATES = (0.0, 0.1, 0.3, 0.5, 1.0)
TASKS = 1000


@cache
def random_routing(rate: float) -> tuple[int, int]:
    """Route a share `rate` of ten doors' steps (.95 against .995) to the LLM at random; return successes and LLM
    steps."""
    actors = {"slm": chain_actor(0.95), "llm": chain_actor(0.995)}
    chain = ChainBenchmark(num_tasks=TASKS)
    return play(chain, actors, lambda page, task, step: "llm" if uniform("q", task, step) < rate else "slm", TASKS)


def known_rate(rate: float) -> float:
    return success_rate([(10, mixture(0.95, 0.995, rate))])


@pytest.mark.parametrize("rate", RATES)
def test_executed_routing_agrees_with_the_closed_form(rate: float) -> None:
    won, _ = random_routing(rate)
    low, high = wilson(won, TASKS)
    assert low <= known_rate(rate) <= high
    assert high < 0.86 or rate > 0.5, "the any-step rule would print .860 at q = .1"


def test_a_random_router_recovers_less_than_half_of_the_area() -> None:
    """Success is convex in the share of LLM steps if every step has to be right, so a random router's APGR is below one
    half: in closed form, and executed within 3.29 standard errors of that."""
    inner, cost = RATES[1:-1], lambda rate: 1 + 29 * rate
    exact = curve([(cost(rate), known_rate(rate)) for rate in inner], *((cost(end), known_rate(end)) for end in (0, 1)))
    points = {
        rate: (1 + 29 * calls / (10 * TASKS), won / TASKS) for rate in RATES for won, calls in [random_routing(rate)]
    }
    executed = curve([points[rate] for rate in inner], points[0.0], points[1.0])
    gap = known_rate(1) - known_rate(0)
    error = math.sqrt(known_rate(0.3) * (1 - known_rate(0.3)) / TASKS) / gap
    assert executed == pytest.approx(exact, abs=3.29 * error)
    assert exact < 0.5 and executed < 0.5


def curve(points: list[tuple[float, float]], slm: tuple[float, float], llm: tuple[float, float]) -> float:
    """Return the APGR of operating points, (cost, success) each."""
    cost, success = (np.array([axis]) for axis in zip(*points, strict=True))
    ends = ((np.array([end[0]]), np.array([end[1]])) for end in (slm, llm))
    return float(Curve.through(cost, success, *ends).apgr()[0])


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
