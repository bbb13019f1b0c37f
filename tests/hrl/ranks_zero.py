"""Script of the ranks that `test_zero.py` launches: whole trainings with DeepSpeed engines for each role."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.parallel.sharding import ShardedModel
from r2v.hrl.parallel.zero import zero_sharded
from r2v.hrl.training.optimizer_step import Network, optimizer_step
from r2v.hrl.training.trainer import Trainer
from r2v.policy.export import export
from tests.hrl import trainers
from tests.hrl.ranks_sharding import FULL, HALFWAY, MICRO, stopping, trained

PLAIN = replace(
    trainers.BASE, iterations=2, episodes=5, placement="full", critic=replace(trainers.BASE.critic, warmup=0)
)
"""A small configuration; the other case uses every feature."""
CASES: dict[str, tuple[HierarchicalConfig, int, int]] = {
    "zero2": (replace(PLAIN, shards="zero2"), 0, MICRO["shared"]),
    "zero3": (replace(FULL, placement="full", shards="zero3"), 4, MICRO["full"]),
}
"""Configuration, rank of adapters (0: all weights are trained), rows at a time: rank 0 has one more pass than rank
1."""


def held(trainer: Trainer) -> dict[str, int]:
    """Return the parameter counts of the actor: those in this rank's memory, and all."""
    body = trainer.roles.language_models["actor"][0]
    assert isinstance(body, ShardedModel)
    with body.use_adapter(trainer.roles.language_models["actor"][1]) as model:
        cut: list[Any] = list(model.parameters())
    moments = [
        one for state in trainer.roles.engines["actor"].optimizer_state.values() for one in state.values() if one.dim()
    ]
    return {
        "own": sum(one.ds_tensor.numel() if hasattr(one, "ds_tensor") else one.numel() for one in cut),
        "there": sum(one.numel() for one in cut),
        "all": sum(getattr(one, "ds_numel", one.numel()) for one in cut),
        "own_moments": sum(one.numel() for one in moments),
        "learning": sum(getattr(one, "ds_numel", one.numel()) for one in cut if one.requires_grad),
    }


def not_a_number(trainer: Trainer, loss_too: bool) -> dict[str, Any]:
    """Make the last rank's gradient, or its loss too, NaN; return each rank's message, and True if a weight moved."""
    network, roles = trainer.policies.networks["actor"], trainer.roles
    before = roles.state("actor")
    wrong = distributed.rank() == distributed.ranks() - 1

    def part(chosen: Any) -> tuple[Tensor, Tensor]:
        loss = model(torch.full((len(chosen), 3), 7)).logits.square().mean()
        if wrong and loss_too:
            loss = loss * float("nan")
        elif wrong:
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss, loss.new_zeros(0)

    with roles.using("actor") as model:
        try:
            optimizer_step(network, range(2), roles.wrap_loss("actor", part))
            said = ""
        except UsageError as refused:
            said = str(refused)
    moved = [float((now - before[name]).abs().max()) for name, now in roles.state("actor").items()]
    return {"said": said, "moved": max(moved)}


def first_step(fp16_supported: bool) -> list[float]:
    """Return loss and gradient norm of a float64 model's first ZeRO-3 step, on a processor with or without fp16."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    # DeepSpeed's accelerator asks the processor for fp16 support; the test decides it
    CPU_Accelerator.is_fp16_supported = lambda self: fp16_supported
    model = trainers.language_model().requires_grad_(True)
    sharded, engine = zero_sharded(model, None, stage=3, lr=1e-3, clip=1.0, device="cpu")
    network = Network(
        "actor",
        sharded.trained(None).values(),
        lr=1e-3,
        clip=1.0,
        micro_batch_size=2,
        setting="hierarchical.lr",
        engine=engine,
    )

    def part(chosen: Any) -> tuple[Tensor, Tensor]:
        loss = model(torch.full((len(chosen), 3), 7)).logits.square().mean()
        return loss, loss.new_zeros(0)

    with sharded.use_adapter(None) as model:
        stepped = optimizer_step(network, range(2), sharded.wrap_loss(part))
    return [stepped.loss, stepped.norm]


def everything(folder: Path, model: Path) -> None:
    """Train each case to its end, and stopped and resumed; finish a training that one process began, with layers
    recomputed in backward. Leave a copy of the stopped one."""
    distributed.join("cpu")
    told = {}
    for name, (h, lora, micro_batch_size) in CASES.items():
        trainer = trained(model, folder / name, h, lora, micro_batch_size=micro_batch_size)
        sha256 = trainer.report()["trained_sha256"]
        if distributed.rank() == 0:
            export(trainer.roles.actor_as_policy(), folder / f"{name}-policy")
        trainer = trained(
            model, folder / f"{name}-stopped", h, lora, micro_batch_size=micro_batch_size, stop=stopping(HALFWAY)
        )
        told[name] = held(trainer) | {"sha256": sha256}
        told[name]["nan"] = [not_a_number(trainer, loss_too) for loss_too in (True, False)]
        if distributed.rank() == 0:
            shutil.copytree(folder / f"{name}-stopped", folder / f"{name}-left", symlinks=True)
        distributed.wait_for_all()
        trained(model, folder / f"{name}-stopped", h, lora, micro_batch_size=micro_batch_size)
        trained(
            model,
            folder / f"{name}-begun",
            replace(h, gradient_checkpointing=True),
            lora,
            micro_batch_size=micro_batch_size,
        )
    told["first_step"] = {str(supported): first_step(supported) for supported in (True, False)}
    (folder / f"rank-{distributed.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: everything(Path(sys.argv[1]), Path(sys.argv[2]))))
