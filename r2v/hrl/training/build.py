"""Construction of a trainer from a configuration, for the stage and the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from r2v import distributed
from r2v.config import TASK_PROBLEMS, Config, identity
from r2v.config.engines import LOCAL
from r2v.hrl.models.roles import build_roles
from r2v.hrl.models.served import SERVED, ServedRoles
from r2v.hrl.parallel.micro_batch import fit
from r2v.hrl.parallel.placement import first_device
from r2v.hrl.training.problem_set import TextProblems, task_problems, with_action_lengths, with_lengths
from r2v.hrl.training.trainer import Trainer
from r2v.log import logger
from r2v.policy.export import weights_sha256
from r2v.policy.load import device_of
from r2v.policy.serving import training_servers


def build_trainer(
    config: Config,
    folder: Path,
    weights: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    root: Path = Path(),
) -> Trainer:
    """Return the trainer of `config.hierarchical`, with its checkpoints in `folder`. Both policies start from
    `policy.model_name`, or from exported `weights`. `root`: the checkout, whose processes share site sets. All ranks of
    a launch must call.

    Raises UsageError or InputError for too few problems, a placement without its GPUs, or a model without a chat
    template.
    """
    h = config.hierarchical
    texts = None if h.problems.path == TASK_PROBLEMS else TextProblems.of(h.problems)
    if config.policy.lora_dropout > 0 and distributed.rank() == 0:
        logger.info("  hierarchical training ignores policy.lora_dropout, which is for bc and preference")
    distributed.join(first_device(h.placement, device_of(config.policy)))
    roles = build_roles(config.policy, h, config.seed, weights)
    with roles.using("actor") as model:
        dtype = str(model.dtype).removeprefix("torch.")
    h = with_lengths(h, texts.problems, roles.tokenizer) if texts else with_action_lengths(h, config.inference)
    if config.policy.engine != LOCAL:
        tokens = config.policy.max_seq_len + max(h.longest_answer, h.longest_hint)
        servers = training_servers(config.policy, tokens=tokens, dtype=dtype, device=roles.devices.actor)
        roles = replace(roles, served=ServedRoles(servers, folder / SERVED / str(distributed.rank())))
    best = fit(config.policy, h, roles.placement, roles.devices)
    h = replace(h, gradient_checkpointing=best.gradient_checkpointing)
    if distributed.rank() == 0:
        logger.info(
            "  hierarchical training planned: placement=%s devices=%s micro_batch=%s gradient_checkpointing=%s "
            "answer_tokens=%d hint_tokens=%d",
            roles.placement,
            ",".join(sorted(set(vars(roles.devices).values()))),
            best.sizes,
            str(best.gradient_checkpointing).lower(),
            h.answer_tokens,
            h.hint_tokens,
        )
    rows = best.sizes.rollout_rows(config.rollout)
    problems = (
        texts.asked_with(roles.tokenizer, config.policy)
        if texts
        else task_problems(config, h, roles, rows, folder, root)
    )
    provenance = {"policy": identity(config.policy), "weights": "" if weights is None else weights_sha256(weights)}
    return Trainer(
        roles=roles,
        problems=problems.problems,
        held_out=problems.held_out,
        prompter=problems.prompter,
        checker=problems.checker,
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
