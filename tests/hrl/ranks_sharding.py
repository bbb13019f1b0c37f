"""Script of the ranks that `test_sharding.py` launches: whole trainings with language models in parts."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import Interrupted, UsageError
from r2v.hrl.parallel.sharding import ShardedModel
from r2v.hrl.training.optimizer_step import optimizer_step
from r2v.hrl.training.trainer import Trainer
from r2v.policy.export import export
from tests.hrl import trainers

SHARED = replace(trainers.BASE, iterations=2, episodes=5, critic=replace(trainers.BASE.critic, warmup=0))
"""Adapters on one base."""
FULL = replace(trainers.EVERYTHING, iterations=2, episodes=5, critic=replace(trainers.EVERYTHING.critic, warmup=0))
"""Copies of the model, all of whose weights are trained."""
MICRO = {"shared": 7, "full": 12}
"""Rows at a time: of 15 answers, and of 25, rank 0 has one more than rank 1, and so one more pass."""
HALFWAY = 12
"""Phases after which a run is stopped: in the second iteration, between actor and guidance."""


def stopping(after: int) -> Any:
    """Return a function that asks to stop after so many phases."""
    left = iter(range(after - 1))
    return lambda: next(left, None) is None


def trained(model: Path, folder: Path, h: HierarchicalConfig, lora: int, **options: Any) -> Trainer:
    """Return a trainer that has run to its end, or to its stop."""
    trainer = trainers.trainer_of(model, folder, h, lora=lora, **options)
    try:
        trainer.run()
    except Interrupted:
        assert "stop" in options
    return trainer


def begun_and_whole(model: Path, folder: Path, name: str, h: HierarchicalConfig, lora: int) -> None:
    """Train to half of it, and a copy of that to the end."""
    trained(model, folder / f"{name}-begun", h, lora, stop=stopping(HALFWAY))
    shutil.copytree(folder / f"{name}-begun", folder / name, symlinks=True)
    trained(model, folder / name, h, lora)


def held(trainer: Trainer) -> dict[str, int]:
    """Return the parameter counts of the language models: those in this rank's memory, and all."""
    bases = {id(base): base for base, _ in trainer.roles.language_models.values()}.values()
    assert all(isinstance(base, ShardedModel) for base in bases)
    learning = [tensor for base in bases for tensor in base.shards.model.parameters()]
    speaking = [tensor for base in bases if base.copy for tensor in base.copy.model.parameters()]
    assert len(learning) == len(speaking)
    assert all(isinstance(tensor, DTensor) for tensor in learning)
    moments = [
        value
        for name in ("actor", "guidance")
        for one in trainer.policies.networks[name].optimizer.state.values()
        for value in one.values()
        if value.dim()
    ]
    return {
        "own": sum(tensor.to_local().numel() for tensor in learning),
        "all": sum(tensor.numel() for tensor in learning),
        "speaking": sum(tensor.untyped_storage().nbytes() for tensor in speaking),
        "own_moments": sum(value.to_local().numel() for value in moments),
        "all_moments": sum(value.numel() for value in moments),
    }


def not_a_number(trainer: Trainer) -> dict[str, Any]:
    """Make the last rank's loss NaN; return each rank's message, and how far its part of the actor moved."""
    network, roles = trainer.policies.networks["actor"], trainer.roles
    before = [tensor.detach().clone() for tensor in network.parameters]
    factor = float("nan") if distributed.rank() == distributed.ranks() - 1 else 1.0
    with roles.using("actor") as model:

        def part(chosen: Any) -> tuple[Tensor, Tensor]:
            loss = factor * model(torch.full((len(chosen), 3), 7)).logits.square().mean()
            return loss, loss.new_zeros(0)

        try:
            optimizer_step(network, range(2), roles.wrap_loss("actor", part))
            said = ""
        except UsageError as refused:
            said = str(refused)
    moved = [
        float((was - now.detach()).to_local().abs().max())
        for was, now in zip(before, network.parameters, strict=True)
        if now.to_local().numel()
    ]
    return {"said": said, "moved": max(moved)}


def unread(*_: Any, **__: Any) -> Any:
    """Stand-in for reading a model on ranks that must not: rank 0 alone may."""
    raise AssertionError("a rank other than the first reads the weights")


def everything(folder: Path, model: Path) -> None:
    """Train both placements in parts; stop one halfway, and resume one that was begun whole, with layers recomputed in
    backward."""
    distributed.join("cpu")
    if distributed.rank():
        AutoModelForCausalLM.from_pretrained = unread
    told = {}
    for name, h, lora in (("shared", SHARED, 4), ("full", FULL, 0)):
        h = replace(h, shards="fsdp")
        trainer = trained(model, folder / name, h, lora, micro_batch_size=MICRO[name])
        sha256 = trainer.report()["trained_sha256"]
        if distributed.rank() == 0:
            export(trainer.roles.actor_as_policy(), folder / f"{name}-policy")
        trainer = trained(model, folder / f"{name}-stopped", h, lora, stop=stopping(HALFWAY))
        told[name] = held(trainer) | {"sha256": sha256, "nan": not_a_number(trainer)}
        trained(model, folder / f"{name}-begun", replace(h, gradient_checkpointing=True), lora)
    (folder / f"rank-{distributed.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: everything(Path(sys.argv[1]), Path(sys.argv[2]))))
