"""The study of a verifier's labels, as far as it needs no student."""

from __future__ import annotations

import numpy as np

from benchmarks.verifier_labels import State, _places, router_scores, row, with_experts
from r2v.llm.types import Message
from r2v.verifier.labels import VerifierExample
from r2v.verifier.train import encoded


def state(number: int, target: float, expert: str | None, entropy: float) -> State:
    example = VerifierExample(
        state_id=f"e{9 - number}#0",
        task_id=f"t{number % 3}",
        split="train",
        messages=(Message(role="user", content=f"{number}"),),
        action=f"a{number}",
        target=target,
        label_source="executed",
        kind="student",
    )
    return State(example=example, expert=expert, features={"uncertainty.entropy_max": entropy, "page.size": 1.0})


STATES = [state(0, 1.0, None, 0.1), state(1, 0.4, "b1", 0.9), state(2, 0.0, "b2", 0.8), state(3, 1.0, "b3", 0.2)]


def test_an_action_that_costs_nothing_is_not_costly_and_the_experts_stand_beside_the_others() -> None:
    assert [one.costly for one in STATES] == [False, True, True, False]
    pairs = with_experts(STATES)
    assert sorted(one.action for one in pairs) == ["a0", "a1", "a2", "a3", "b1", "b2", "b3"]
    assert all(one.target == 1.0 for one in pairs if one.kind == "expert")


def test_scores_are_put_back_where_their_states_stand() -> None:
    examples = [one.example for one in STATES]
    rows = encoded(examples, lambda messages, action: (int(messages[0].content),))
    assert [examples[at].messages[0].content for at in _places(examples)] == [str(one.ids[0]) for one in rows]


def test_a_signal_that_knows_has_an_auroc_of_one_and_the_routers_model_finds_it() -> None:
    knows = np.array([one.features["uncertainty.entropy_max"] for one in STATES])
    assert row("entropy", knows, STATES, 0).startswith("| entropy | 1.000")
    assert row("against", -knows, STATES, 0).startswith("| against | 0.000")
    fitted = router_scores("logistic", STATES * 3, STATES, 0)
    assert min(fitted[1:3]) > max(fitted[[0, 3]])
