from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from r2v.data.episode import (
    AppliedPerturbation,
    Candidate,
    Decision,
    Episode,
    StepLabel,
    from_dict,
    parse_episode,
    to_dict,
    to_line,
)

Play = Callable[..., Episode]


def rich(play: Play) -> Episode:
    episode = play(perturbation_seed=7, condition="noisy", perturbation_type="composite")
    full = replace(
        episode.steps[0],
        label=StepLabel(is_correct=False, value=0.25),
        perturbations=(AppliedPerturbation(category="prompt_injection", params={"u": [1]}, canary="x"),),
        decision=Decision(p_escalate=0.5, candidates=(Candidate(text="go", logprob=-0.1),)),
    )
    return replace(episode, steps=(full, *episode.steps[1:]))


def test_round_trip_leaves_its_argument_alone(play: Play) -> None:
    episode = rich(play)
    record = to_dict(episode)
    before = copy.deepcopy(record)
    assert from_dict(Episode, record) == episode
    assert record == before
    assert parse_episode(to_line(episode)) == episode


def test_unknown_fields_are_kept_with_a_warning(play: Play) -> None:
    record = {**to_dict(play()), "colour": "red"}
    record["metadata"]["mood"] = 3
    with pytest.warns(UserWarning, match="unknown fields"):
        episode = from_dict(Episode, record)
    assert episode.extra == {"colour": "red"} and episode.metadata.extra == {"mood": 3}


def test_lines_are_compact_json_without_nan(play: Play) -> None:
    assert "\n" not in to_line(play()) and ": " not in to_line(play(text="x"))
    with pytest.raises(ValueError, match="JSON compliant"):
        to_line(play(total_cost=float("nan")))


@pytest.mark.parametrize("line", ["[]", "3", "{}", '{"steps":[]}', "no"])
def test_what_is_no_episode_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError):
        parse_episode(line)


def test_order_of_keys_does_not_change_the_dedup_key(play: Play) -> None:
    record = json.loads(to_line(play()))
    turned = json.dumps(dict(reversed(record.items())))
    assert parse_episode(turned).dedup_key == play().dedup_key


def test_twins_and_other_tasks_are_no_duplicates(play: Play) -> None:
    keys = {
        play().dedup_key,
        play(task="t2").dedup_key,
        play(perturbation_seed=1).dedup_key,
        play(perturbation_seed=2).dedup_key,
        play(condition="noisy").dedup_key,
        play(actions=("go",)).dedup_key,
    }
    assert len(keys) == 6
    assert play(seed=9, run_id="other", total_cost=1.0).dedup_key == play().dedup_key
