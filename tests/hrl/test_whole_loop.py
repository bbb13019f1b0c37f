"""All parts together, from draws alone, reach the optimum of the table world.

About 5 CPU-seconds per seed, most of them the 1,600 steps of the critic.
"""

from __future__ import annotations

import pytest
import torch

from tests.hrl import tabular_mdp
from tests.trust import drawn

from .table_loop import Learner

pytestmark = pytest.mark.numerical

ITERATIONS = 200


@pytest.mark.parametrize("seed", drawn([0, 1, 2], 1, "whole loop"))
def test_answers_and_hints_become_the_best_there_are(seed: int) -> None:
    """Both answers paid: J from 0.633 to 1.896 of J* = 1.9, first answer right .998, hint good .999."""
    torch.set_num_threads(1)
    rewards = (tabular_mdp.first_score(), tabular_mdp.second_score())
    learner = Learner(seed, (1.0, 1.0))
    assert float(tabular_mdp.worth(learner.policies(), rewards).v1) == pytest.approx(0.6333, abs=1e-4)
    for iteration in range(ITERATIONS):
        learner.iterate(iteration)
    learnt = learner.policies()
    assert float(tabular_mdp.best(rewards).max()) == 1.9
    assert 1.895 <= float(tabular_mdp.worth(learnt, rewards).v1) <= 1.9
    assert float(learnt.first[2]) == pytest.approx(0.998, abs=1.5e-3)
    assert float(learnt.hint[2, 0]) == pytest.approx(0.999, abs=7e-4)
