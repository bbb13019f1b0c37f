"""The problem set of a training: problems with known answers, or states of a benchmark's tasks; with what asks them,
what scores the answers, and how long these may be.

Where the configuration gives no length: a model that reasons needs about as many tokens as the file's own worked
solutions. An answer may have half as many again as the longest of 95 % of them, a hint a quarter of that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2v import distributed
from r2v.config import (
    BUNDLED_PROBLEMS,
    Config,
    HierarchicalConfig,
    InferenceConfig,
    PolicyConfig,
    ProblemsConfig,
    TaskSelection,
)
from r2v.config.hierarchical import UNKNOWN_TOKENS
from r2v.envs.base import load_benchmark
from r2v.errors import InputError
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.episode import PlayedChecker, Prompts
from r2v.hrl.rollout.task_rollout import ExecutedActions, task_states
from r2v.hrl.tasks.checkers import Checker, checker_of, kind_of
from r2v.hrl.tasks.problems import Problem, read_problems
from r2v.hrl.tasks.prompts import Prompter, instructions_for
from r2v.hrl.tasks.task_states import TaskPrompter, divided, read_states, write_states
from r2v.hrl.tasks.word_problems import word_problems
from r2v.log import logger
from r2v.policy.prompt_encoder import Encoder
from r2v.randomness import digest
from r2v.rollout.fork import branchable
from r2v.rollout.model_factory import told_tools
from r2v.rollout.session import RolloutWorld, episode_specs
from r2v.rollout.sites import SitePool

BUNDLED_TOKENS = (16, 8)
"""Answers and hints of the bundled word problems."""
_SAMPLE = 500
_STEP = 16


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """Problems to train on and held-out ones, what makes their prompts, and what scores answers."""

    problems: list[Problem]
    held_out: list[Problem]
    prompter: Prompts
    checker: Checker | PlayedChecker


@dataclass(frozen=True, kw_only=True)
class TextProblems:
    """Problems with known answers, before a tokenizer is there to make their prompts."""

    problems: list[Problem]
    held_out: list[Problem]
    kind: str
    """The checker's name or path."""
    checker: Checker
    instructions: str | None

    @classmethod
    def of(cls, settings: ProblemsConfig) -> TextProblems:
        """Read or generate them. Raises InputError or UsageError where they or their checker cannot be used."""
        problems, held_out = problems_of(settings)
        kind = kind_of(settings.checker, [*problems, *held_out])
        checker = checker_of(kind, [*problems, *held_out], unsafe=settings.unsafe)
        return cls(problems=problems, held_out=held_out, kind=kind, checker=checker, instructions=settings.instructions)

    def asked_with(self, tokenizer: Any, policy: PolicyConfig) -> ProblemSet:
        """The set whose prompts this tokenizer of a policy makes."""
        return ProblemSet(
            problems=self.problems,
            held_out=self.held_out,
            prompter=Prompter(
                tokenizer,
                self.instructions or instructions_for(self.kind),
                enable_thinking=policy.enable_thinking or False,
            ),
            checker=self.checker,
        )


def problems_of(settings: ProblemsConfig) -> tuple[list[Problem], list[Problem]]:
    """(training problems, held-out problems). They depend on nothing but `settings`: runs with other seeds are
    evaluated on the same problems. In a file, each problem's id decides on which side it is.

    Raises InputError where a file has too few.
    """
    if settings.path == BUNDLED_PROBLEMS:
        return word_problems(settings.count, 0, "train"), word_problems(settings.held_out, 0, "eval")
    ordered = sorted(read_problems(Path(settings.path)), key=lambda problem: digest("held out", problem.id))
    if len(ordered) <= settings.held_out:
        raise InputError(
            f"{settings.path}: has {len(ordered)} problems, hierarchical.problems.held_out={settings.held_out} "
            "leaves none to train on; set it lower, or give more problems"
        )
    return ordered[settings.held_out :][: settings.count], ordered[: settings.held_out]


def with_lengths(h: HierarchicalConfig, problems: Sequence[Problem], tokenizer: Any) -> HierarchicalConfig:
    """The configuration with `answer_tokens` and `hint_tokens`: its own, or from the first 500 problems' solutions. A
    file of bare answers says nothing: then it is `UNKNOWN_TOKENS`."""
    answer, hint = _lengths(h, problems, tokenizer)
    return replace(h, answer_tokens=h.answer_tokens or answer, hint_tokens=h.hint_tokens or hint)


def _lengths(h: HierarchicalConfig, problems: Sequence[Problem], tokenizer: Any) -> tuple[int, int]:
    if h.problems.path == BUNDLED_PROBLEMS:
        return BUNDLED_TOKENS
    answer = h.answer_tokens or _of_solutions([one.solution for one in problems[:_SAMPLE] if one.solution], tokenizer)
    return answer, _rounded(answer / 4)


def _of_solutions(solutions: Sequence[str], tokenizer: Any) -> int:
    counts = sorted(len(tokenizer.encode(solution, add_special_tokens=False)) for solution in solutions)
    return _rounded(1.5 * counts[math.ceil(0.95 * len(counts)) - 1]) if counts else UNKNOWN_TOKENS


def _rounded(tokens: float) -> int:
    return _STEP * math.ceil(tokens / _STEP)


def with_action_lengths(h: HierarchicalConfig, inference: InferenceConfig) -> HierarchicalConfig:
    """The configuration with `answer_tokens` and `hint_tokens`: its own, or those of an action."""
    most = inference.max_new_tokens
    return replace(h, answer_tokens=h.answer_tokens or most, hint_tokens=h.hint_tokens or most)


def task_problems(
    config: Config, h: HierarchicalConfig, roles: Roles, rows: RolloutRows, folder: Path, root: Path
) -> ProblemSet:
    """States that the untrained actor comes to in training tasks; they are kept in `folder`, for a run that is resumed.
    `root` is the checkout whose site sets are shared. All ranks must call."""
    benchmark = load_benchmark(config.env.benchmark, config.env.options)
    inference = config.inference.acting()
    world = RolloutWorld(benchmark, config.perturbations, inference, SitePool.of(config.rollout, benchmark, root))
    every = episode_specs(
        benchmark,
        "train",
        [config.seed],
        TaskSelection.training(config),
        method="slm_only",
        limit=h.problems.num_tasks,
    )
    specs = branchable(benchmark, every, "hierarchical")
    tools = told_tools(config.policy, benchmark)
    encoder = Encoder.of(roles.tokenizer, config.policy, inference.max_new_tokens, tools)
    states = read_states(folder, specs)
    if states is None:
        states = task_states(
            world,
            specs,
            roles=roles,
            encoder=encoder,
            max_tokens=inference.max_new_tokens,
            rollout=config.rollout,
            rows=rows,
        )
        if distributed.rank() == 0:
            write_states(folder, states)
    trained, held_out = divided(states, h.problems)
    if distributed.rank() == 0:
        logger.info(
            "  hierarchical: %d states of %d tasks to train on, %d held out (of other tasks)",
            *(len(trained), len({one.spec.task.task_id for one in trained}), len(held_out)),
        )
    return ProblemSet(
        problems=[one.problem() for one in trained],
        held_out=[one.problem() for one in held_out],
        prompter=TaskPrompter(encoder, states),
        checker=ExecutedActions.of(world, states, encoder, inference.max_new_tokens),
    )
