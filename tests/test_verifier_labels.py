"""The study of a verifier's labels, as far as it needs no student."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks.verifier_labels import DRAWS, State, drawn_aurocs, router_scores, row, with_experts
from benchmarks.verifier_recipes import bradley_terry, read_together, train_on_pairs, within_states
from r2v.randomness import generator, seed_of
from r2v.verifier.held_out import probabilities, readings_of, report
from r2v.verifier.labels import VerifierExample, in_order
from r2v.verifier.model import VerifierModel
from r2v.verifier.scores import auroc
from r2v.verifier.train import encoded
from r2v.wire.message import Message
from tests.verifier import toy


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
    assert [example.costly for example in STATES] == [False, True, True, False]
    pairs = with_experts(STATES)
    assert sorted(example.action for example in pairs) == ["a0", "a1", "a2", "a3", "b1", "b2", "b3"]
    assert all(example.target == 1.0 for example in pairs if example.kind == "expert")


def test_pairs_within_a_state_are_the_policys_worse_action_and_the_experts() -> None:
    examples = with_experts(STATES)
    pairs = {(examples[better].action, examples[worse].action) for better, worse in within_states(examples)}
    assert pairs == {("b1", "a1"), ("b2", "a2")}, "b3 is no better than a3, and actions of two states are no pair"


def test_the_bradley_terry_loss_of_a_pair_is_minus_the_log_of_the_sigmoid_of_the_gap() -> None:
    logits = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    assert bradley_terry(logits, []).item() == 0.0
    by_hand = -math.log(1 / (1 + math.exp(-2))) - math.log(1 / (1 + math.exp(1)))
    assert bradley_terry(logits, [(1, 0), (2, 0)]).item() == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.numerical
def test_rows_inside_longer_ones_are_read_with_them_and_stand_in_their_order() -> None:
    model = VerifierModel(toy.backbone().double())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    rows = [(5, 6), (5, 9), (5, 6, 7, 8), (5, 6)]
    assert torch.allclose(read_together(model, rows), model.score(model.features(rows)), atol=1e-12)


@pytest.mark.numerical
@pytest.mark.parametrize("cross_entropy", [False, True])
def test_training_on_pairs_orders_the_actions_of_states_that_it_has_not_seen(cross_entropy: bool) -> None:
    examples = in_order(toy.separable(range(400)))
    model = VerifierModel(toy.backbone())
    rows = encoded(examples, toy.encode)
    train_on_pairs(model, examples, rows, toy.phase(num_epochs=6), 0, cross_entropy=cross_entropy)
    fresh = toy.separable(range(1_000, 1_200))
    figures = report(fresh, probabilities(readings_of(model, fresh, toy.encode).logits, 1.0))
    assert figures["auroc_within_state"] > 0.95  # type: ignore[operator]


def test_a_signal_that_knows_has_an_auroc_of_one_and_the_routers_model_finds_it() -> None:
    knows = np.array([state.features["uncertainty.entropy_max"] for state in STATES])
    drawn, against = (drawn_aurocs(scores, STATES, 0) for scores in (knows, -knows))
    assert row("entropy", drawn, against) == "| entropy | 1.000 [1.000, 1.000] | +1.000 [+1.000, +1.000] |"
    fitted = router_scores("logistic", STATES * 3, STATES, 0)
    assert min(fitted[1:3]) > max(fitted[[0, 3]])


def test_drawn_aurocs_are_those_of_the_states_of_the_tasks_that_are_drawn() -> None:
    draw = generator("drawn aurocs")
    states = [state(at, float(draw.random() < 0.5), None, round(draw.random(), 1)) for at in range(30)]
    scores = np.array([state.features["uncertainty.entropy_max"] for state in states])
    tasks = ["t0", "t1", "t2"]
    expected = [auroc(scores, [state.costly for state in states])]
    for own in np.random.default_rng(seed_of("verifier labels", 0)).integers(3, size=(DRAWS, 3))[:20]:
        rows = [at for task_index in own for at in range(30) if states[at].example.task_id == tasks[task_index]]
        expected.append(auroc(scores[rows], [states[at].costly for at in rows]))
    np.testing.assert_allclose(drawn_aurocs(scores, states, 0)[:21], np.array(expected), rtol=1e-12)
