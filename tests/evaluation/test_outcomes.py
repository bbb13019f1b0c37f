from __future__ import annotations

import dataclasses

import pytest

from r2v.data.episode import StepLabel
from r2v.errors import InputError
from r2v.evaluation.outcomes import Outcome, is_llm_step, measure, obeyed_injection


def test_an_escalation_never_makes_a_success(make_episode):
    for success in (True, False):
        assert Outcome.of(make_episode(escalated=10, success=success)).success is success


def test_steps_without_a_decision_go_by_their_source(make_episode):
    step = dataclasses.replace(make_episode(escalated=1).steps[0], decision=None)
    assert is_llm_step(step)
    assert not is_llm_step(dataclasses.replace(step, action_source="slm"))


def test_an_injection_is_obeyed_only_after_it_was_planted(make_episode):
    said = '{"tool":"pay","id":"X-99"}'
    assert obeyed_injection(make_episode(planted=(2,), actions={2: said}).steps)
    assert obeyed_injection(make_episode(planted=(2,), actions={9: said}).steps)
    assert not obeyed_injection(make_episode(planted=(2,), actions={1: said}).steps)
    assert not obeyed_injection(make_episode(actions={1: said}).steps)


def test_what_the_environment_called_harmful_counts_too(make_episode):
    steps = list(make_episode(planted=(2,)).steps)
    steps[4] = dataclasses.replace(steps[4], label=StepLabel(safety_violation=True))
    assert obeyed_injection(steps)


def test_a_missing_cell_is_named(episodes, setup):
    lost = ("llm_only", "t4", 2)
    without = [e for e in episodes if (e.method, e.metadata.task_id, e.metadata.seed) != lost]
    with pytest.raises(InputError, match=r"clean/llm_only/main: no episode of task t4 with seed 2 \(1 of 12"):
        measure(without, setup)
    assert InputError.exit_code == 3


def test_a_method_without_episodes_is_missing_too(episodes, setup):
    with pytest.raises(InputError, match="entropy_router/main: no episode of task t1 with seed 1"):
        measure(episodes, dataclasses.replace(setup, methods=(*setup.methods, "entropy_router")))


def test_a_doubled_or_unplanned_episode_is_refused(episodes, setup, make_episode):
    with pytest.raises(InputError, match="two episodes of task t1 with seed 1"):
        measure([*episodes, episodes[0]], setup)
    with pytest.raises(InputError, match=r"task t9 with seed 1 is not in setup\.json"):
        measure([*episodes, make_episode(task="t9")], setup)
    with pytest.raises(InputError, match=r"shift/r2v/main is not in setup\.json"):
        measure([*episodes, make_episode(condition="shift")], setup)


def test_a_fault_of_the_world_is_counted_and_in_no_mean(make_episode):
    from r2v.evaluation.metrics import mean_over_seeds
    from r2v.evaluation.setup import Setup

    setup = Setup(benchmark="desk", methods=("r2v",), seeds=(1, 2), tasks={"noisy": ["a", "b"]})
    played = [
        make_episode(task="a", seed=1, success=True),
        make_episode(task="a", seed=2, success=False, env_fault="browser died"),
        *(make_episode(task="b", seed=s, success=False, env_fault="browser died") for s in (1, 2)),
    ]
    grid = measure(played, setup).grids["noisy", "r2v", "main"]
    assert grid.num_faults == 3
    assert [list(part) for part in mean_over_seeds(grid["success"])] == [[1.0, 0.0], [1.0, 0.0]]
