"""Saving and restoring a trainer between two phases: what its checkpoint holds (`r2v.hrl.training.checkpoint`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from r2v import distributed
from r2v.hrl.models.roles import Roles, SavedRole
from r2v.hrl.parallel.parts import own_part
from r2v.hrl.training import checkpoint
from r2v.hrl.training.state import TrainingState
from r2v.storage.checkpoint import LATEST, resuming

if TYPE_CHECKING:
    from r2v.hrl.training.trainer import Trainer


TRAINED: tuple[SavedRole, ...] = ("actor", "guidance", "critic", "value", "target")


def trained_weights(roles: Roles, here: bool = True) -> dict[str, Any]:
    """Copies of all that is trained, by role. All ranks must ask where models are sharded."""
    return {role: roles.state(role, here) for role in TRAINED}


def save(trainer: Trainer) -> None:
    """Write a checkpoint: rank 0, where models are whole, and each rank its part, where FSDP shards them. Who is not
    writing waits, so that none resumes from half of one."""
    first, state, in_parts = distributed.rank() == 0, trainer.state, trainer.roles.in_parts
    learned: dict[str, Any] = {}
    if in_parts:
        _save_part(trainer)
    elif first or trainer.roles.sharded:
        learned = {"trained": trained_weights(trainer.roles, first), "policies": trainer.policies.plain(first)}
    if first:
        replay_folder, critic_trainer = trainer.folder / "replay", trainer.critic_trainer
        saved = {"state": state.plain(), **learned, "lines": trainer.metrics_file.length}
        if critic_trainer is not None:
            replay_folder.mkdir(parents=True, exist_ok=True)
            saved |= {
                "critic": critic_trainer.network.optimizer.state_dict(),
                "replay": critic_trainer.replay_buffer.save(replay_folder),
            }
        position = {"iteration": state.iteration, "phase": state.phase, "replay": saved.get("replay", 0)}
        needed = critic_trainer.replay_buffer.segments(replay_folder) if critic_trainer else ()
        checkpoint.write(trainer.folder, state.number, trainer.identity, position, saved, needed, begun=in_parts)
        if critic_trainer is not None:
            critic_trainer.replay_buffer.forget(replay_folder, checkpoint.oldest(trainer.folder, "replay"))
    distributed.wait_for_all()


def _save_part(trainer: Trainer) -> None:
    """This rank's part of all that is trained, into the checkpoint that rank 0 begins here and ends when all are
    there."""
    if distributed.rank() == 0:
        checkpoint.begin(trainer.folder, trainer.state.number)
    distributed.wait_for_all()
    part = {
        "trained": {role: trainer.roles.own_parts(role) for role in TRAINED},
        "policies": trainer.policies.plain(distributed.rank() == 0, own_part),
    }
    checkpoint.write_part(trainer.folder, trainer.state.number, part)
    distributed.wait_for_all()


def resume(trainer: Trainer) -> None:
    """Resume from the latest checkpoint, if there is one; metrics written after it are written again."""
    saved = checkpoint.read(trainer.folder, trainer.identity)
    if saved is not None:
        with resuming((trainer.folder / LATEST).resolve()):
            _restore(trainer, saved)
    if distributed.rank() == 0:
        trainer.folder.mkdir(parents=True, exist_ok=True)
        trainer.metrics_file.truncate(saved["lines"] if saved is not None else 0)
    distributed.wait_for_all()


def _restore(trainer: Trainer, saved: Mapping[str, Any]) -> None:
    trainer.state = TrainingState.of(saved["state"])
    for role, state in saved["trained"].items():
        trainer.roles.load(role, state)
    trainer.policies.load(saved["policies"])
    if trainer.critic_trainer is not None:
        trainer.critic_trainer.network.optimizer.load_state_dict(saved["critic"])
        trainer.critic_trainer.replay_buffer.load(trainer.folder / "replay", saved["replay"])
