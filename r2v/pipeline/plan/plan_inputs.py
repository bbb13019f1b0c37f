"""Inputs of the cost estimate: a configuration and the facts of its benchmark.

def collect(inputs: PlanInputs) -> Sequence[Part]: ...     # named by the stage's row in the table: `Job.parts`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from r2v.config import Config
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts
from r2v.pipeline.plan.price import longest_prompt, mean_prompt
from r2v.pipeline.plan.workload import Workload
from r2v.rollout.work_queue import block_size


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a stage with one kind of work."""

    name: str
    total: Workload
    unit: Workload
    """Largest piece that a stop can lose, stored only as a whole: a task with all its branches."""
    shared: bool = False
    """True if other methods and thresholds send the same requests to local models (`Pace.remembered`)."""
    at_most: str = ""
    """Reason that the counts are upper bounds; empty if they are exact."""
    remedy: str = ""
    """Configuration keys that make the part smaller."""
    blocks: int = 1
    """Blocks, of which a helper leases one at a time (`r2v.rollout.work_queue`)."""
    alone: float = 0.0
    """Share of the part that changes a shared world: played alone on a site set (`r2v.rollout.sites`)."""


@dataclass(frozen=True)
class PlanInputs:
    """A configuration and the facts of its benchmark."""

    config: Config
    facts: BenchmarkFacts

    @property
    def student_steps(self) -> float:
        """Steps of an episode of the small policy."""
        return self._at_most_allowed(self.facts.pace.student_steps)

    @property
    def teacher_steps(self) -> float:
        """Steps of an episode of the LLM."""
        return self._at_most_allowed(self.facts.pace.teacher_steps)

    def _at_most_allowed(self, steps: float | None) -> float:
        longest = self.config.inference.max_steps
        return longest if steps is None else min(steps, longest)

    def blocks(self, tasks: float, points: int) -> int:
        """Return the blocks of so many tasks, each played at `points` seeds times conditions; 1 if uncounted (nan)."""
        each = math.ceil(block_size(self.config.rollout) / max(1, points))
        return 1 if math.isnan(tasks) else max(1, math.ceil(tasks / each))

    def alone(self, split: str, limit: float | None) -> float:
        """Return the share of a split's first `limit` tasks that change a shared world."""
        played = self.facts.of_split(split, limit)
        return 1 - self.facts.branched_of_split(split, limit) / played if played else 0.0

    def played(self, name: str, play: Workload, tasks: float, points: int, *, times: float = 1, **others: Any) -> Part:
        """Return the part that plays each of so many tasks at `points` seeds times conditions, `times` over."""
        total, blocks = play.times(tasks * points * times), self.blocks(tasks, points)
        return Part(name=name, total=total, unit=play, blocks=blocks, **others)

    def with_tokens(self, work: Workload, steps: float) -> Workload:
        """Return the work with the tokens of its requests along episodes of `steps` steps."""
        pace, policy = self.facts.pace, self.config.policy
        shown = policy.max_seq_len - self.config.inference.max_new_tokens
        if policy.is_api:
            endpoint = policy.as_endpoint(self.config.teacher)
            small = mean_prompt(
                pace.prompt_tokens, pace.page_tokens, pace.action_tokens, steps, longest_prompt(endpoint)
            )
            written = work.drawn * min(pace.action_tokens, policy.api.max_tokens)
            work = replace(work, small_in=work.drawn * small, small_out=written)
        own = 0.0 if policy.is_api else work.student
        local = mean_prompt(pace.prompt_tokens, pace.page_tokens, pace.action_tokens, steps, shown)
        remote = mean_prompt(
            pace.prompt_tokens, pace.page_tokens, pace.action_tokens, steps, longest_prompt(self.config.teacher)
        )
        return replace(
            work,
            read=(own + work.verifier) * local,
            written=0.0
            if policy.is_api
            else work.drawn * min(pace.action_tokens, self.config.inference.max_new_tokens),
            llm_in=work.llm * remote,
            llm_out=work.llm * min(pace.action_tokens, self.config.teacher.max_tokens),
        )
