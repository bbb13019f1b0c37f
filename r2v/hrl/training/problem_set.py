"""Problem set of a training: problems with reference answers, or states of a benchmark's tasks, with their prompts,
checker and token limits.

Default limits assume that reasoning takes about as many tokens as the file's worked solutions: 1.5 times their 95th
percentile for an answer, a quarter of that for a hint.
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
"""Tokens of answers and hints of the bundled word problems."""
_SAMPLE = 500
_STEP = 16


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """Training and held-out problems, their prompts and their checker."""

    problems: list[Problem]
    held_out: list[Problem]
    prompter: Prompts
    checker: Checker | PlayedChecker


@dataclass(frozen=True, kw_only=True)
class TextProblems:
    """Problems with reference answers, before a tokenizer is loaded for their prompts."""

    problems: list[Problem]
    held_out: list[Problem]
    kind: str
    """The checker's name or path."""
    checker: Checker
    instructions: str | None

    @classmethod
    def of(cls, settings: ProblemsConfig) -> TextProblems:
        """Read or generate the problems. Raises InputError or UsageError if they or their checker cannot be used."""
        problems, held_out = problems_of(settings)
        kind = kind_of(settings.checker, [*problems, *held_out])
        checker = checker_of(kind, [*problems, *held_out], unsafe=settings.unsafe)
        return cls(problems=problems, held_out=held_out, kind=kind, checker=checker, instructions=settings.instructions)

    def asked_with(self, tokenizer: Any, policy: PolicyConfig) -> ProblemSet:
        """Return the problem set with prompts by this tokenizer of a policy."""
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
    """Return (training problems, held-out problems). They depend only on `settings`, so that all seeds are evaluated on
    the same problems. A file is split by a hash of each problem's id.

    Raises InputError if a file has too few.
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
    """Return the configuration with `answer_tokens` and `hint_tokens`; by default from the first 500 problems'
    solutions, or `UNKNOWN_TOKENS` for a file of bare answers."""
    answer, hint = _lengths(h, problems, tokenizer)
    return replace(h, answer_tokens=h.answer_tokens or answer, hint_tokens=h.hint_tokens or hint)


def _lengths(h: HierarchicalConfig, problems: Sequence[Problem], tokenizer: Any) -> tuple[int, int]:
    if h.problems.path == BUNDLED_PROBLEMS:
        return BUNDLED_TOKENS
    answer = h.answer_tokens or _of_solutions([p.solution for p in problems[:_SAMPLE] if p.solution], tokenizer)
    return answer, _rounded(answer / 4)


def _of_solutions(solutions: Sequence[str], tokenizer: Any) -> int:
    counts = sorted(len(tokenizer.encode(solution, add_special_tokens=False)) for solution in solutions)
    return _rounded(1.5 * counts[math.ceil(0.95 * len(counts)) - 1]) if counts else UNKNOWN_TOKENS


def _rounded(tokens: float) -> int:
    return _STEP * math.ceil(tokens / _STEP)


def with_action_lengths(h: HierarchicalConfig, inference: InferenceConfig) -> HierarchicalConfig:
    """Return the configuration with `answer_tokens` and `hint_tokens`; by default the limit of an action."""
    most = inference.max_new_tokens
    return replace(h, answer_tokens=h.answer_tokens or most, hint_tokens=h.hint_tokens or most)


def task_problems(
    config: Config, h: HierarchicalConfig, roles: Roles, rows: RolloutRows, folder: Path, root: Path
) -> ProblemSet:
    """Return the problem set of states that the untrained actor reaches in training tasks. They are written to
    `folder`, for resumed runs. `root`: the checkout whose site sets are shared. All ranks must call."""
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
            "  task states divided: train_states=%d train_tasks=%d held_out_states=%d",
            *(len(trained), len({state.spec.task.task_id for state in trained}), len(held_out)),
        )
    return ProblemSet(
        problems=[state.problem() for state in trained],
        held_out=[state.problem() for state in held_out],
        prompter=TaskPrompter(encoder, states),
        checker=ExecutedActions.of(world, states, encoder, inference.max_new_tokens),
    )
