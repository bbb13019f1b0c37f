"""Workload: episodes, steps, requests and tokens of a plan, in closed forms.

    episode(22, student=1)                          # 1 reset, 22 steps, 22 requests to the small policy
    branches(22, each=0.6, copies=False, student=1)  # at each of 22 states .6 branches, each played to the end

A branch is another action at a state of an episode, played on to the end. If worlds can be copied it begins there; else
it is one reset and a replay of the actions so far. An episode of T steps has T states; a branch at the t-th (from 0)
has T - t actions of its own, of which the first is given and T - t - 1 are requested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Counts, which may be means and not whole."""

    episodes: float = 0.0
    """Episodes played from a reset."""
    branches: float = 0.0
    """Continuations from a state of an episode."""
    resets: float = 0.0
    steps: float = 0.0
    """Executed actions, those of a replay included."""
    student: float = 0.0
    """Requests to local policies. Equal requests count each time, although they are answered once."""
    drawn: float = 0.0
    """Replies to these: K for K samples."""
    llm: float = 0.0
    """Requests to the LLM, as a teacher, in routed steps or as a judge."""
    verifier: float = 0.0
    """Actions that the verifier scores."""
    read: float = 0.0
    """Prompt tokens of local models, policies and verifier."""
    written: float = 0.0
    """Reply tokens of local policies."""
    llm_in: float = 0.0
    """Prompt tokens of the LLM."""
    llm_out: float = 0.0
    """Its reply tokens."""
    small_in: float = 0.0
    """Prompt tokens of a small model behind an API; each of its replies is a request of its own."""
    small_out: float = 0.0
    """Its reply tokens."""
    trained: float = 0.0
    """Training tokens of local models, over all epochs."""

    def __add__(self, other: Workload) -> Workload:
        return Workload(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def times(self, count: float) -> Workload:
        """Return `count` times these counts."""
        return Workload(**{item.name: count * getattr(self, item.name) for item in fields(self)})

    @property
    def counted(self) -> bool:
        """True if no count is unknown (nan)."""
        return not any(math.isnan(getattr(self, item.name)) for item in fields(self))


UNCOUNTED = Workload(**{one.name: math.nan for one in fields(Workload)})
"""Work of a stage that cannot be counted; sums with it are not counted either."""


def episode(length: float, *, student: float = 0, llm: float = 0, verifier: float = 0, samples: float = 0) -> Workload:
    """Return an episode of `length` steps. student, llm, verifier: requests a step; samples: replies to another one."""
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
    """Return `each` branches at every state of an episode of `length` steps, which end at the same step. `copies`:
    worlds can be copied. student, llm: requests at every step after a branch's first."""
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
    """Return an upper bound of `count` branches at unknown states: all at the first. Without copies steps are exact."""
    return Workload(
        branches=count,
        resets=0 if copies else count,
        steps=count * length,
        llm=count * (length - 1) * llm,
    )
