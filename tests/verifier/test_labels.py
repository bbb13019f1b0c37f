from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.errors import InputError
from r2v.policy.prompt_encoder import build_messages
from r2v.randomness import uniform
from r2v.verifier.labels import (
    ExecutedAction,
    balanced,
    blamed,
    consensus_examples,
    detour_value,
    executed_examples,
    in_order,
    judged_examples,
    lambda_returns,
    outcome_examples,
    read_examples,
    td_examples,
    write_examples,
)

from . import toy


def episode(success: bool, length: int = 3, **changes: object) -> Episode:
    steps = tuple(
        Step(step_idx=i, observation=Observation(raw_text=f"page {i}"), action=Action(raw_text=f"act {i}"))
        for i in range(length)
    )
    metadata = EpisodeMetadata(task_id="t", goal="g", benchmark="desk", split="train")
    return replace(Episode(episode_id="t/s1", metadata=metadata, steps=steps, success=success), **changes)  # type: ignore[arg-type]


def executed(**changes: object) -> ExecutedAction:
    base = ExecutedAction(
        state_id="t/s1#0",
        task_id="t",
        split="train",
        messages=(),
        action="a",
        outcomes=(True,),
        expert_outcomes=(True,),
        kind="skipped_step",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_outcomes_of_successes_only() -> None:
    examples = outcome_examples([episode(True), episode(False), episode(True, env_fault="disk")], build_messages)
    assert [(e.target, e.action, e.state_id) for e in examples] == [(1.0, f"act {i}", f"t/s1#{i}") for i in range(3)]
    assert examples[1].messages == build_messages("g", ["page 0", "page 1"], ["act 0"])


def test_blame_grows_towards_the_end_of_a_failure() -> None:
    targets = [e.target for e in outcome_examples([episode(False)], build_messages, failed=blamed)]
    assert targets == pytest.approx([1 - 0.64, 1 - 0.8, 0.0])


def test_lambda_returns_are_values_plus_generalised_advantages_and_monte_carlo_at_1() -> None:
    values, outcome = [0.3, 0.9, 0.2, 0.6], 1.0
    ahead = [*values[1:], outcome]
    deltas = [after - value for value, after in zip(values, ahead, strict=True)]  # the reward is the last "after"
    for decay in (0.0, 0.5, 0.9, 1.0):
        advantages = [sum(decay**k * d for k, d in enumerate(deltas[at:])) for at in range(4)]
        assert lambda_returns(values, outcome, decay) == pytest.approx(
            [value + advantage for value, advantage in zip(values, advantages, strict=True)]
        )
    assert lambda_returns(values, outcome, 1.0) == [1.0] * 4
    assert lambda_returns(values, outcome, 0.0) == [0.9, 0.2, 0.6, 1.0]


def test_labels_of_temporal_differences_stay_within_their_episode() -> None:
    examples = outcome_examples(
        [episode(True), episode(False, episode_id="t/s2")], build_messages, failed=lambda left: 0.0
    )
    found = td_examples(examples, [0.5, 0.6, 0.7, 0.4, 0.3, 0.2], 0.0)
    assert [one.target for one in found] == [0.6, 0.7, 1.0, 0.3, 0.2, 0.0]
    assert {one.label_source for one in found} == {"td"}


def test_an_episode_without_a_split_is_refused() -> None:
    nameless = episode(True, metadata=EpisodeMetadata(task_id="t", goal="g", benchmark="desk"))
    with pytest.raises(InputError, match="no split"):
        outcome_examples([nameless], build_messages)


def test_states_beyond_saving_teach_nothing() -> None:
    examples, counts = executed_examples(
        [executed(outcomes=(False, True, False, False)), executed(expert_outcomes=(False,), outcomes=(False,))]
    )
    assert [(e.target, e.label_source, e.kind) for e in examples] == [(0.25, "executed", "skipped_step")]
    assert counts == {"kept": 1, "not_savable": 1}


def test_a_state_beyond_saving_ends_nobody_elses_lesson() -> None:
    """A state whose expert succeeds in half of its continuations can still be saved, one below that cannot."""
    doomed, half = executed(expert_outcomes=(0.0, 0.98)), executed(expert_outcomes=(0.0, 1.0), action="b")
    examples, counts = executed_examples([doomed, half, doomed, executed(action="c")])
    assert [example.action for example in examples] == ["b", "c"] and counts == {"kept": 2, "not_savable": 2}


def test_a_detour_is_worth_less_with_each_step_and_a_short_cut_no_more() -> None:
    assert [detour_value(True, extra, 0.5) for extra in (-2, 0, 1, 2)] == [1.0, 1.0, 0.5, 0.25]
    assert detour_value(False, 0, 0.5) == 0.0 and detour_value(True, 3, 1.0) == 1.0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_the_label_of_n_continuations_is_binomial(p: float) -> None:
    """A toy environment in which every continuation succeeds with probability p."""
    outcomes = tuple(uniform("toy-world", str(p), k) < p for k in range(400))
    (example,), _ = executed_examples([executed(outcomes=outcomes)])
    assert abs(example.target - p) <= 3 * (p * (1 - p) / 400) ** 0.5


def test_a_judge_without_opinion_labels_nothing() -> None:
    examples = judged_examples([toy.example(0, 1.0, [1]), toy.example(1, 1.0, [1])], [None, 0.3])
    assert [(e.target, e.label_source) for e in examples] == [(0.3, "judge")]


def test_every_task_sums_to_one() -> None:
    weighed = balanced([replace(toy.example(0, 1.0, [1]), task_id=task) for task in "aaab"])
    assert [e.weight for e in weighed] == [1 / 3, 1 / 3, 1 / 3, 1]


def test_examples_round_trip_in_any_order(tmp_path: Path) -> None:
    examples = toy.separable(range(20))
    for name, rows in (("a", examples), ("b", examples[::-1])):
        assert write_examples(tmp_path / name, rows) == 20
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_examples(tmp_path / "a") == in_order(examples)
    (tmp_path / "a").write_text("[]\n")
    with pytest.raises(InputError, match="a:1: not a VerifierExample"):
        read_examples(tmp_path / "a")


def test_consensus_keeps_what_a_judge_confirms_to_three_tenths() -> None:
    """|executed - judge| <= .3 keeps the executed target; the rest is counted by its reason."""
    examples = [
        executed_examples([executed(outcomes=(target,), expert_outcomes=(1.0,))])[0][0]
        for target in (1.0, 1.0, 0.4, 0.0, 0.0, 1.0)
    ]
    kept, counts = consensus_examples(examples, [0.7, 0.69, 0.1, 0.3, 0.31, None])
    assert [one.target for one in kept] == [1.0, 0.4, 0.0] and {one.label_source for one in kept} == {"consensus"}
    assert counts == {"kept": 3, "disputed": 2, "not_judged": 1}
