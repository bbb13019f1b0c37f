"""Workload: what playing amounts to, counted before it is played. Arithmetic only, in closed forms.

    episode(22, student=1)                          # 1 reset, 22 steps, 22 questions to the small policy
    branches(22, each=0.6, copies=False, student=1)  # at each of 22 states .6 branches, each played to the end

A branch is another action at a state of an episode, played on to the end. Where worlds can be copied it begins there;
elsewhere it is one reset and the actions so far, played again. An episode of T steps has T states; a branch at the t-th
(from 0) has T - t actions of its own, of which the first is given and T - t - 1 are asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Counts; they may be means, and so no whole numbers."""

    episodes: float = 0.0
    """Played from a reset of their own."""
    branches: float = 0.0
    """Played on from a state of an episode."""
    resets: float = 0.0
    steps: float = 0.0
    """Actions that worlds execute, those of a replay included."""
    student: float = 0.0
    """Questions to local policies. Equal questions count each time, although they are answered once."""
    drawn: float = 0.0
    """Replies to these: K where K samples are asked for."""
    llm: float = 0.0
    """Questions to the LLM, as a teacher, in routed steps or as a judge."""
    verifier: float = 0.0
    """Actions that the verifier scores."""
    read: float = 0.0
    """Prompt tokens that local models read, policies and verifier."""
    written: float = 0.0
    """Tokens that local policies add."""
    llm_in: float = 0.0
    """Prompt tokens of the LLM."""
    llm_out: float = 0.0
    """Its reply tokens."""
    small_in: float = 0.0
    """Prompt tokens of a small model behind an API, of which each reply is a request of its own."""
    small_out: float = 0.0
    """Its reply tokens."""
    trained: float = 0.0
    """Tokens that local models learn from, each epoch's."""

    def __add__(self, other: Workload) -> Workload:
        return Workload(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def times(self, count: float) -> Workload:
        """So often."""
        return Workload(**{item.name: count * getattr(self, item.name) for item in fields(self)})

    @property
    def counted(self) -> bool:
        """False where any of the counts is not known (nan)."""
        return not any(math.isnan(getattr(self, item.name)) for item in fields(self))


UNCOUNTED = Workload(**{one.name: math.nan for one in fields(Workload)})
"""The work of a stage that nobody counts; sums with it are not counted either."""


def episode(length: float, *, student: float = 0, llm: float = 0, verifier: float = 0, samples: float = 0) -> Workload:
    """An episode of `length` steps; questions are of each step, `samples` the completions drawn in one more of them."""
    return Workload(
        episodes=1,
        resets=1,
        steps=length,
        student=length * (student + (samples > 0)),
        drawn=length * (student + samples),
        llm=length * llm,
        verifier=length * verifier,
    )


def branches(length: float, *, each: float, copies: bool, student: float = 0, llm: float = 0) -> Workload:
    """`each` branches at every state of an episode of `length` steps, all of which last as long as it. `copies`:
    worlds can be copied. `student` or `llm` questions are asked in every step that is played on."""
    count = each * length
    played = each * length * (length + 1) / 2
    questions = each * length * (length - 1) / 2
    return Workload(
        branches=count,
        resets=0 if copies else count,
        steps=played if copies else count * length,
        student=questions * student,
        drawn=questions * student,
        llm=questions * llm,
    )


def branches_at_most(length: float, *, count: float, copies: bool, llm: float = 0) -> Workload:
    """`count` branches at states that nobody knows yet: at most what they come to at the first. Without copies the
    steps are exact."""
    return Workload(
        branches=count,
        resets=0 if copies else count,
        steps=count * length,
        llm=count * (length - 1) * llm,
    )
