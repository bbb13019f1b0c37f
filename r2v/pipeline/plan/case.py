"""Case: a configuration over a known benchmark, from which the parts of a stage are counted.

def collect(case: Case) -> Sequence[Part]: ...     # named by the stage's row in the table: `Job.parts`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from r2v.config import Config
from r2v.pipeline.plan.known import Known
from r2v.pipeline.plan.price import longest_prompt, mean_prompt
from r2v.pipeline.plan.workload import Workload
from r2v.rollout.work_queue import block_size


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of playing in a stage."""

    name: str
    total: Workload
    unit: Workload
    """Of it, what is kept only as a whole: a stop loses at most this. Today a task with all its branches."""
    shared: bool = False
    """Whether its questions to local models are those of other methods and thresholds too (`Pace.remembered`)."""
    at_most: str = ""
    """Why the counts are the most that there can be; empty where they are exact."""
    remedy: str = ""
    """The configuration keys that make it smaller."""
    blocks: int = 1
    """Blocks that it is cut into, of which a helper takes one at a time (`r2v.rollout.work_queue`)."""
    alone: float = 0.0
    """Share of it that changes a world which others share: played alone on a site set (`r2v.rollout.sites`)."""


@dataclass(frozen=True)
class Case:
    """A configuration over a known benchmark."""

    config: Config
    known: Known

    @property
    def student_steps(self) -> float:
        """Of an episode of the small policy."""
        return self._at_most_allowed(self.known.pace.student_steps)

    @property
    def teacher_steps(self) -> float:
        """Of an episode of the LLM."""
        return self._at_most_allowed(self.known.pace.teacher_steps)

    def _at_most_allowed(self, steps: float | None) -> float:
        longest = self.config.inference.max_steps
        return longest if steps is None else min(steps, longest)

    def blocks(self, tasks: float, points: int) -> int:
        """Blocks that so many tasks are cut into, each played at so many points: seeds times conditions; one where the
        tasks are not counted (nan)."""
        each = math.ceil(block_size(self.config.rollout) / max(1, points))
        return 1 if math.isnan(tasks) else max(1, math.ceil(tasks / each))

    def alone(self, split: str, limit: float | None) -> float:
        """Share of a split's first tasks that change a world which others share."""
        played = self.known.of_split(split, limit)
        return 1 - self.known.branched_of_split(split, limit) / played if played else 0.0

    def with_tokens(self, work: Workload, steps: float) -> Workload:
        """The work with the tokens of its questions, asked along episodes of `steps` steps."""
        pace, policy = self.known.pace, self.config.policy
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
