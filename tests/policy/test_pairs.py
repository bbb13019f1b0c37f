from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import PreferenceConfig
from r2v.data.schema import read_records
from r2v.errors import InputError
from r2v.policy.candidates import CandidateAction, CandidateState, write_states
from r2v.policy.pairs import PreferencePair, make_pairs, similarity, why_none, write_pairs
from r2v.wire.message import Message


def act(k: int, name: str, value: float | None = None, score: float | None = None, **more: object) -> CandidateAction:
    text = f'{{"tool":"{name}"}}' if name.isalnum() else name
    return CandidateAction(k=k, text=text, canonical=text, value=value, score=score, **more)  # type: ignore[arg-type]


def state(name: str, *candidates: CandidateAction, task: str | None = None, **more: object) -> CandidateState:
    return CandidateState(
        state_id=name,
        task_id=task or name,
        split=more.pop("split", "train"),
        step_idx=0,  # type: ignore[arg-type]
        context_sha256=more.pop("context", name),
        prompt=(Message(role="user", content="g"),),  # type: ignore[arg-type]
        candidates=candidates,
        **more,
    )  # type: ignore[arg-type]


LONG = '{"tool":"reply","text":"' + " ".join(f"w{i}" for i in range(40)) + '"}'
FIXTURE = [
    state("01", act(0, "a", 0.0), act(1, "b", 1.0)),
    state("02", act(0, "a", 0.3), act(1, "b", 0.2), act(2, "c", 0.9)),
    state("03", act(0, "a", 1.0), act(1, "b", 0.0), split="calibration"),
    state("04", act(0, "a", 1.0), act(1, "a", 1.0)),
    state("05", act(0, "a"), act(1, "b", 1.0)),
    state("06", act(0, "a", 0.5), act(1, "b", 0.75)),
    state("07", act(0, "{broken", 1.0), act(1, "b", 0.0)),
    state("08", act(0, '{"tool":"close","id":"r901"}', 1.0), act(1, "done", 0.0), canaries=("r901",)),
    state("09", act(0, LONG, 1.0), act(1, LONG.replace("w39", "v39"), 0.0)),
    state("10", act(0, "d", 0.0), act(1, "e", 1.0, logprob_sum=-2.0), act(2, "f", 1.0, logprob_sum=-0.5)),
    state("11", act(0, "a", 0.0), act(1, "b", 1.0)),
    state("12", act(0, "a", 1.0), act(1, "b"), act(2, "c", 0.0), task="02"),
]
MORE = [
    state("20", act(0, LONG.replace("reply", "b"), 1.0), act(1, "b", 0.0)),
    state("21", act(0, "a", 0.0), act(1, "b", 1.0), context="01"),
    state("22", act(0, "d", 0.0), act(1, "e", 1.0), task="02"),
    state("23", act(0, "d", 0.0), act(1, "e", 1.0, finish_reason="length")),
]


def test_twelve_states_give_exactly_these_five_pairs_and_drops() -> None:
    pairs, counts = make_pairs(FIXTURE, PreferenceConfig())
    assert [(p.state_id, p.chosen[9], p.rejected[9], p.margin) for p in pairs] == [
        ("01", "b", "a", 1.0),
        ("02", "c", "b", 0.7),
        ("12", "a", "c", 1.0),
        ("10", "f", "d", 1.0),
        ("11", "b", "a", 1.0),
    ], "by task"
    dropped = {reason: count for reason, count in counts.items() if count and reason != "pairs"}
    assert dropped == dict.fromkeys(
        ["not_train", "all_equal", "not_measured", "margin", "unparseable", "canary", "similar"], 1
    )
    assert sum(counts.values()) == len(FIXTURE)


def test_the_other_reasons() -> None:
    pairs, counts = make_pairs([*FIXTURE, *MORE], PreferenceConfig(max_pairs_per_task=2))
    assert len(pairs) == counts["pairs"] == 5
    assert (counts["length_ratio"], counts["duplicate"], counts["task_cap"], counts["unparseable"]) == (1, 1, 1, 2)


def test_a_call_is_held_to_the_length_of_calls_of_its_tool() -> None:
    """`done` beside a call with six fields is a balanced pair; a call three times as long as its tool's is not."""
    long = '{"tool":"get","name":"ann lee","team":"net","item":"laptop","id":"r204"}'
    short, padded = '{"tool":"done"}', long.replace("ann lee", "ann lee " * 30)
    two_tools = [state(f"s{i}", act(0, long, 1.0), act(1, short, 0.0)) for i in range(3)]
    one_tool = [state("t", act(0, padded, 1.0), act(1, long, 0.0))]
    pairs, counts = make_pairs([*two_tools, *one_tool], PreferenceConfig())
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [(long, short)] * 3
    assert counts["length_ratio"] == 1


def test_equal_candidates_give_no_pair_and_say_why() -> None:
    greedy = [state(f"s{i}", *(act(k, "a", 1.0) for k in range(5))) for i in range(4)]
    pairs, counts = make_pairs(greedy, PreferenceConfig())
    assert (pairs, counts["pairs"], counts["all_equal"]) == ([], 0, 4)
    line = why_none(counts, PreferenceConfig())
    assert line.startswith("no preference pairs (preference.pair_mode=outcome): all_equal 4; raise candidates.")
    assert ": no states;" in why_none(make_pairs([], PreferenceConfig())[1], PreferenceConfig())


def test_actions_that_came_to_the_same_are_no_pair_however_small_a_gap_is_allowed() -> None:
    """Otherwise the likelier of two equal actions would be preferred."""
    alike = state("s", act(0, "a", 1.0, score=0.5, logprob_sum=-1.0), act(1, "b", 1.0, score=0.5, logprob_sum=-9.0))
    near = state("t", act(0, "a", 1.0, score=0.5), act(1, "b", 0.99, score=0.49))
    for cfg in (
        PreferenceConfig(min_value_gap=0.0),
        PreferenceConfig(min_margin=0.0, pair_mode="verifier_margin"),
    ):
        pairs, counts = make_pairs([alike, near], cfg)
        assert [(pair.state_id, pair.margin) for pair in pairs] == [("t", 0.01)]
        assert counts["margin"] == 1


def test_the_order_of_states_does_not_matter() -> None:
    assert make_pairs(FIXTURE[::-1], PreferenceConfig()) == make_pairs(FIXTURE, PreferenceConfig())


def test_modes_by_score() -> None:
    one = state(
        "s", act(0, "a", value=1.0, score=0.3), act(1, "b", value=0.0, score=0.8), teacher=act(-1, "t", score=0.9)
    )
    chosen = {
        mode: make_pairs([one], PreferenceConfig(pair_mode=mode))[0][0]  # type: ignore[arg-type]
        for mode in ("outcome", "verifier_margin", "teacher_vs_slm")
    }
    assert {mode: (p.chosen[9], p.rejected[9], p.chosen_source) for mode, p in chosen.items()} == {
        "outcome": ("a", "b", "slm"),
        "verifier_margin": ("b", "a", "slm"),
        "teacher_vs_slm": ("t", "a", "teacher"),
    }
    none, counts = make_pairs([one], PreferenceConfig(pair_mode="consensus"))
    assert (none, counts["margin"]) == ([], 1)
    agreeing = replace(one, candidates=(act(0, "a", value=0.0, score=0.3), act(1, "b", value=1.0, score=0.8)))
    assert make_pairs([agreeing], PreferenceConfig(pair_mode="consensus"))[0][0].margin == 0.5


def test_a_tasks_first_mistakes_count_and_the_policys_own_action_among_equals() -> None:
    """The tenth step ranks behind the second, and where the teacher does no better the policy's own action is
    chosen."""
    steps = [
        replace(
            state(f"t/1#{step}", act(0, wrong, 0.0), act(1, "b", 1.0, logprob_sum=-9.0), task="t", context=str(step)),
            step_idx=step,
            teacher=act(-1, "c", 1.0),
        )
        for step, wrong in ((10, "d"), (2, "a"), (11, "e"), (4, "f"), (3, "a"))
    ]
    pairs, counts = make_pairs(steps, PreferenceConfig(max_pairs_per_task=2))
    assert [(pair.state_id, pair.chosen_source) for pair in pairs] == [("t/1#2", "slm"), ("t/1#4", "slm")]
    assert (counts["duplicate"], counts["task_cap"]) == (1, 2), "the same mistake in a row counts once"


def test_one_identifier_makes_a_difference() -> None:
    get = '{"tool":"get","name":"ann lee","team":"net","item":"laptop","id":"r204"}'
    assert similarity(get, get) == 1.0
    assert similarity(get, get.replace("r204", "r205")) < 0.95


def test_files_round_trip(tmp_path: Path) -> None:
    assert write_states(tmp_path / "c.jsonl", FIXTURE[::-1]) == 12
    assert read_records(tmp_path / "c.jsonl", CandidateState) == FIXTURE
    pairs, _ = make_pairs(FIXTURE, PreferenceConfig())
    write_pairs(tmp_path / "p.jsonl", pairs)
    assert read_records(tmp_path / "p.jsonl", PreferencePair) == pairs
    assert (tmp_path / "p.jsonl").read_text().startswith('{"prompt":[{"role":"user","content":"g"}],"chosen":')
    with pytest.raises(InputError, match="missing"):
        read_records(tmp_path / "none.jsonl", CandidateState)
