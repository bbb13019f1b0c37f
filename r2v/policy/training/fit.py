"""The training loop that behaviour cloning and DPO share: order of rows, trainer arguments, checkpoints, resuming.

The order of rows is fixed before training starts and a pure function of (seed, lengths); a resumed run skips the
rows it has seen and continues with the same batches. Only the effective batch matters, not how it is divided into
micro-batches or among ranks (`r2v.distributed`): each update sees the same rows. On a signal to stop, the current
update is finished and a checkpoint written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import PrinterCallback, TrainerCallback

from r2v import distributed
from r2v.config import Phase
from r2v.errors import Interrupted, UsageError
from r2v.policy.precision import tf32
from r2v.policy.training.sharded_training import fsdp_plugin, skip_shared_memory_build, zero_plugin
from r2v.progress import Progress
from r2v.randomness import generator, seed_of
from r2v.storage import checkpoint
from r2v.storage.checkpoint import LATEST

_WINDOW = 8
"""Batches within which rows are sorted by length, for little padding in a still random order."""

_PENDING = "pending.pt"
"""File in a checkpoint with the trainer's measurements since its last log entry."""
_LARGE = 100_000_000
"""Parameters above which a GPU trains in bfloat16 and recomputes activations."""


def schedule(lengths: Sequence[int], phase: Phase, seed: int) -> list[int]:
    """Return the indices of all rows in training order: `num_epochs` passes, each in a new random order,
    neighbours in length together."""
    batch = phase.batch_size * phase.gradient_accumulation_steps
    order: list[int] = []
    for epoch in range(math.ceil(phase.num_epochs)):
        rows = list(range(len(lengths)))
        generator(seed, "epoch", epoch).shuffle(rows)
        order += rows
    order = order[: max(1, round(len(lengths) * phase.num_epochs))]
    arranged: list[int] = []
    for start in range(0, len(order), batch * _WINDOW):
        window = sorted(order[start : start + batch * _WINDOW], key=lambda row: (lengths[row], row))
        batches = [window[i : i + batch] for i in range(0, len(window), batch)]
        rest = batches.pop() if len(batches[-1]) < batch else []
        generator(seed, "window", start).shuffle(batches)
        arranged += [row for rows in batches for row in rows] + rest
    return arranged


def draw_rows(count: int, most: int | None, seed: int) -> list[int]:
    """Return the rows of `count` to train on: all, or `most` of them drawn by key, in their order."""
    if most is None or most >= count:
        return list(range(count))
    return sorted(generator(seed, "examples").sample(range(count), most))


def pad_for_ranks(order: Sequence[int], phase: Phase, ranks: int) -> list[int | None]:
    """Return the scheduled rows as ranks take them, a micro-batch each in turn. All ranks need the same number of equal
    micro-batches, so the last are padded with None, rows without a loss. An update sees the same rows for any number
    of ranks."""
    micro, _ = distributed.cut(phase.batch_size, phase.gradient_accumulation_steps, ranks)
    return [*order, *[None] * (-len(order) % (micro * ranks) if ranks > 1 else 0)]


def arguments(phase: Phase, out: Path, rows: int, model: Any, seed: int) -> dict[str, Any]:
    """Return the settings of a TRL trainer that reads `rows` scheduled rows once, in order."""
    updates = math.ceil(rows / (phase.batch_size * phase.gradient_accumulation_steps))
    micro, accumulation = distributed.cut(phase.batch_size, phase.gradient_accumulation_steps, distributed.ranks())
    on_gpu = model.device.type == "cuda" or (phase.fsdp and torch.cuda.is_available())
    large = on_gpu and sum(p.numel() for p in model.parameters()) > _LARGE
    if (phase.deepspeed or phase.zero) and not on_gpu:
        skip_shared_memory_build()
    return {
        "output_dir": str(out),
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": phase.lr,
        "adam_beta2": 0.98,
        "lr_scheduler_type": "linear",
        "weight_decay": phase.weight_decay,
        **({} if phase.optimizer is None else {"optim": phase.optimizer}),
        "warmup_steps": math.ceil(phase.warmup_ratio * updates),
        "max_grad_norm": phase.grad_clip,
        "save_strategy": "steps",
        "save_steps": phase.save_steps,
        "save_total_limit": None,
        "logging_steps": max(1, updates // 50),
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "max_length": None,
        "seed": seed_of(seed, "trainer") % 2**32,
        "bf16": large,
        "gradient_checkpointing": large and not phase.fsdp,
        "use_cpu": not on_gpu,
        "dataloader_pin_memory": on_gpu,
        "ddp_find_unused_parameters": False,
        "log_level_replica": "error",
        "deepspeed": phase.deepspeed or (zero_plugin(phase.zero) if phase.zero else None),
        **(fsdp_plugin(large) if phase.fsdp else {}),
    }


def fit(trainer: Any, what: str, out: Path, lengths: Sequence[int]) -> list[dict[str, float]]:
    """Train to the end, from the newest whole checkpoint where there is one; return the trainer's log.

    `lengths` are the tokens of the rows, in training order. Raises Interrupted, a checkpoint written, on a signal to
    stop; UsageError where a loss, a gradient or a weight is not finite; EnvironmentFault
    where the disk takes no checkpoint.
    """
    if trainer.args.use_cpu:
        torch.set_num_threads(1)
    trainer.remove_callback(PrinterCallback)
    resume = _resume_from(out, what)
    batch = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * distributed.ranks()
    done, total = int(resume.name.rpartition("-")[2]) if resume else 0, math.ceil(len(lengths) / batch)
    bar = Progress("" if distributed.rank() else what, total, done)
    with distributed.stopping() as stop_requested, bar:
        callback = _CheckpointCallback(
            trainer, out, resume, stop_requested, bar, [0, *accumulate(lengths)][::batch] + [sum(lengths)]
        )
        trainer.add_callback(callback)
        _watch(trainer, what, out)
        with checkpoint.resuming(resume, lambda: callback.stepping), tf32(trainer.args.bf16):
            trainer.train(resume_from_checkpoint=resume and str(resume))
    if callback.stopped:
        raise Interrupted(
            f"{what}: stopped after update {trainer.state.global_step} of {total}, which {out / LATEST} holds; "
            "the same command continues"
        )
    _require_finite_weights(trainer, what)
    history: list[dict[str, float]] = trainer.state.log_history
    return history


def _resume_from(out: Path, what: str) -> Path | None:
    """Return the checkpoint that all ranks resume from; rank 0 checks it, the others follow its link."""
    if distributed.rank() == 0:
        checkpoint.newest_whole(out, what)
    distributed.wait_for_all()
    latest = out / LATEST
    return latest.resolve() if latest.exists() else None


def _watch(trainer: Any, what: str, out: Path) -> None:
    """Have the trainer refuse a gradient that is not finite before the update, and raise EnvironmentFault for a full
    disk while it saves. It has no callback for either."""
    get_norm, save = trainer._get_grad_norm, trainer._save_checkpoint
    size = 3 * sum(p.numel() * p.element_size() for p in trainer.model.parameters() if p.requires_grad)

    def checked_norm(*args: Any, **kwargs: Any) -> Any:
        norm = get_norm(*args, **kwargs)
        loss, length = float(trainer._tr_loss), 0.0 if norm is None else float(norm)
        if not (math.isfinite(loss) and math.isfinite(length)):
            update = trainer.state.global_step + 1
            _refuse(trainer, what, f"in update {update} the loss is {loss:g} and the gradient's norm {length:g}")
        return norm

    def guarded_save(*args: Any, **kwargs: Any) -> None:
        _require_finite_weights(trainer, what)
        with checkpoint.saving(out / f"checkpoint-{trainer.state.global_step}", size):
            save(*args, **kwargs)

    trainer._get_grad_norm, trainer._save_checkpoint = checked_norm, guarded_save


def _require_finite_weights(trainer: Any, what: str) -> None:
    """Raise UsageError if a trained weight is not finite: no such weights are saved or published."""
    for name, weight in trainer.model.named_parameters():
        if weight.requires_grad and not bool(torch.isfinite(weight).all()):
            _refuse(trainer, what, f"the weight {name} is not finite after update {trainer.state.global_step}")


def _refuse(trainer: Any, what: str, finding: str) -> NoReturn:
    """End a training that has diverged: a restart would end the same way."""
    raise UsageError(
        f"{what}: training has diverged: {finding}; nothing is published. Lower training.{what}.lr (now "
        f"{trainer.args.learning_rate:g}), training.grad_clip (now {trainer.args.max_grad_norm:g}) or "
        f"training.{what}.weight_decay (now {trainer.args.weight_decay:g})"
    )


class _CheckpointCallback(TrainerCallback):  # type: ignore[misc]
    """Points checkpoint-latest at each finished checkpoint, updates progress, and stops training on a signal.

    A checkpoint also holds the measurements since the last log entry, so that the log of a resumed run is that of an
    uninterrupted one. `tokens`: tokens trained on after each update.
    """

    def __init__(
        self,
        trainer: Any,
        out: Path,
        resume: Path | None,
        stop_requested: Callable[[], bool],
        bar: Progress,
        tokens: Sequence[int],
    ) -> None:
        self._trainer, self._out, self._resume = trainer, out, resume
        self._stop_requested = stop_requested
        self._bar, self._tokens, self._loss = bar, tokens, dict[str, float]()
        self._began = (0, time.monotonic())
        self.stopped = self.stepping = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = (state.global_step, time.monotonic())
        if self._resume is not None and (self._resume / _PENDING).exists():
            pending = torch.load(self._resume / _PENDING, weights_only=True)
            self._trainer._tr_loss += pending["loss"]
            self._trainer._globalstep_last_logged = pending["since"]
            self._trainer._metrics["train"].update(pending["metrics"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stepping = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._loss = {"loss": round(logs["loss"], 6)} if "loss" in logs else self._loss

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        first, start = self._began
        tokens = self._tokens[state.global_step] - self._tokens[first]
        self._bar.advance(1, **self._loss, tokens_per_s=round(tokens / (time.monotonic() - start), 1))
        if self._stop_requested():
            self.stopped = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self._trainer
        loss = trainer.accelerator.gather(trainer._tr_loss).mean().item()
        distributed.wait_for_all()
        if state.is_world_process_zero:
            folder = self._out / f"checkpoint-{state.global_step}"
            with checkpoint.saving(folder):
                torch.save(
                    {
                        "loss": loss,
                        "since": trainer._globalstep_last_logged,
                        "metrics": dict(trainer._metrics["train"]),
                    },
                    folder / _PENDING,
                )
                checkpoint.seal(folder)
                checkpoint.point(self._out, folder)
            checkpoint.forget(self._out, state.global_step)
        distributed.wait_for_all()
