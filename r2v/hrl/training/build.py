"""Building a trainer from a configuration, for the stage and the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from r2v import distributed
from r2v.config import BUNDLED_PROBLEMS, Config, ProblemsConfig, identity
from r2v.errors import InputError
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.micro_batch import fit
from r2v.hrl.parallel.placement import first_device
from r2v.hrl.tasks.checkers import checker_of, kind_of
from r2v.hrl.tasks.lengths import with_lengths
from r2v.hrl.tasks.problems import Problem, read_problems
from r2v.hrl.tasks.prompts import Prompter, instructions_for
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.trainer import Trainer
from r2v.log import logger
from r2v.policy.export import weights_sha256
from r2v.policy.load import device_of
from r2v.randomness import digest


def build_trainer(
    config: Config, folder: Path, weights: Path | None = None, stop: Callable[[], bool] = lambda: False
) -> Trainer:
    """The trainer of `config.hierarchical`, which keeps its checkpoints in `folder`. Both policies start from
    `policy.model_name`, or from exported `weights`. All ranks of a launch must call.

    Raises UsageError or InputError for what cannot be: too few problems, a placement without its GPUs, a model
    without a chat template.
    """
    h = config.hierarchical
    problems, held_out = problems_of(h.problems)
    kind = kind_of(h.problems.checker, [*problems, *held_out])
    checker = checker_of(kind, [*problems, *held_out], unsafe=h.problems.unsafe)
    if config.policy.lora_dropout > 0 and distributed.rank() == 0:
        logger.info("  hierarchical: adapters without dropout (policy.lora_dropout is for bc and preference)")
    ranks.join(first_device(h.placement, device_of(config.policy)))
    roles = build_roles(config.policy, h, config.seed, weights)
    with roles.using("actor") as model:
        family = str(model.config.model_type)
    h = with_lengths(h, problems, roles.tokenizer)
    best = fit(config.policy, h, roles.placement, roles.devices, family)
    h = replace(h, gradient_checkpointing=best.gradient_checkpointing)
    if distributed.rank() == 0:
        logger.info(
            "  hierarchical: placement %s on %s, micro-batch size %s%s, answers of at most %d tokens, hints of %d",
            roles.placement,
            ", ".join(sorted(set(vars(roles.devices).values()))),
            best.sizes,
            ", gradient checkpointing" if best.gradient_checkpointing else "",
            h.answer_tokens,
            h.hint_tokens,
        )
    provenance = {"policy": identity(config.policy), "weights": "" if weights is None else weights_sha256(weights)}
    return Trainer(
        roles=roles,
        problems=problems,
        held_out=held_out,
        prompter=Prompter(roles.tokenizer, h.problems.instructions or instructions_for(kind)),
        checker=checker,
        h=h,
        seed=config.seed,
        folder=folder,
        stop=stop,
        micro_batch_sizes=best.sizes,
        plan=best.plan,
        prompt_tokens=config.policy.max_seq_len,
        provenance=provenance,
        rollout=config.rollout,
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
