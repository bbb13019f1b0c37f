"""Rehearsal: cloned episodes trained on once more, beside what a policy learns about its own mistakes.

Training on states of mistakes alone moves a policy away from what it did right (catastrophic forgetting); a share of
what was learnt before keeps it there (experience replay, arXiv 1811.11682).
"""

from __future__ import annotations

from r2v.data.episode import Episode
from r2v.policy.bc import Collected
from r2v.policy.training_rows import steps_of
from r2v.randomness import generator


def rehearsed(cloned: Collected, learnt: int, share: float, seed: int) -> list[Episode]:
    """Episodes drawn by key, whose actions are `share` of all that is trained on beside `learnt` others: the first that
    reach it, or all there are."""
    if not share or not learnt:
        return []
    wanted = round(learnt * share / (1 - share))
    sizes = [sum(1 for _ in steps_of(episode)) for episode in cloned]
    order = list(range(len(sizes)))
    generator(seed, "rehearsal").shuffle(order)
    drawn, actions = set[int](), 0
    for index in order:
        if actions >= wanted:
            break
        drawn.add(index)
        actions += sizes[index]
    return [episode for index, episode in enumerate(cloned) if index in drawn]
