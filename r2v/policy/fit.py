"""What behaviour cloning and DPO share: which rows when, what a trainer is told, and stopping and going on.

The order of rows is fixed before training starts and a function of (seed, lengths) alone; a resumed run skips
what it has seen and goes on with the same batches. Only the effective batch matters to it, not how it is cut
into micro-batches.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PrinterCallback, TrainerCallback

from r2v.config import Phase
from r2v.contents import writing
from r2v.log import Progress
from r2v.randomness import generator, seed_of

LATEST = "checkpoint-latest"
_WINDOW = 8
"""Batches within which rows are sorted by length: little padding, and still a random order."""

_LARGE = 100_000_000
_REFUSED = re.compile(r"os error \d+|No space left|File too large|PytorchStreamWriter")


def schedule(lengths: Sequence[int], phase: Phase, seed: int) -> list[int]:
    """Indices of all rows in the order they are trained on: `num_epochs` passes, each in a new random order,
    neighbours in length together."""
    batch = phase.batch_size * phase.gradient_accumulation_steps
    order: list[int] = []
    for epoch in range(math.ceil(phase.num_epochs)):
        rows = list(range(len(lengths)))
        generator(seed, "epoch", epoch).shuffle(rows)
        order += rows
    order = order[:max(1, round(len(lengths) * phase.num_epochs))]
    arranged: list[int] = []
    for start in range(0, len(order), batch * _WINDOW):
        window = sorted(order[start:start + batch * _WINDOW], key=lambda row: (lengths[row], row))
        batches = [window[i:i + batch] for i in range(0, len(window), batch)]
        rest = batches.pop() if len(batches[-1]) < batch else []
        generator(seed, "window", start).shuffle(batches)
        arranged += [row for rows in batches for row in rows] + rest
    return arranged


def draw_rows(count: int, most: int | None, seed: int) -> list[int]:
    """Which of `count` rows are trained on: all, or `most` of them drawn by key, in their order."""
    if most is None or most >= count:
        return list(range(count))
    return sorted(generator(seed, "examples").sample(range(count), most))


def arguments(phase: Phase, out: Path, rows: int, model: Any, seed: int) -> dict[str, Any]:
    """Settings of a TRL trainer that walks once, in order, through `rows` scheduled rows."""
    updates = math.ceil(rows / (phase.batch_size * phase.gradient_accumulation_steps))
    on_gpu = model.device.type == "cuda"
    large = on_gpu and sum(p.numel() for p in model.parameters()) > _LARGE
    return {
        "output_dir": str(out), "num_train_epochs": 1, "train_sampling_strategy": "sequential",
        "per_device_train_batch_size": phase.batch_size,
        "gradient_accumulation_steps": phase.gradient_accumulation_steps,
        "learning_rate": phase.lr, "adam_beta2": 0.98, "lr_scheduler_type": "linear",
        "weight_decay": phase.weight_decay,
        "warmup_steps": math.ceil(phase.warmup_ratio * updates), "max_grad_norm": phase.grad_clip,
        "save_strategy": "steps", "save_steps": phase.save_steps, "save_total_limit": 2,
        "logging_steps": max(1, updates // 50), "logging_first_step": True, "report_to": "none",
        "disable_tqdm": True, "max_length": None, "seed": seed_of(seed, "trainer") % 2**32,
        "bf16": large, "gradient_checkpointing": large, "use_cpu": not on_gpu, "dataloader_pin_memory": on_gpu,
    }


def fit(trainer: Any, what: str, out: Path) -> list[dict[str, float]]:
    """Train to the end, from the newest whole checkpoint where there is one; returns the trainer's log."""
    if trainer.args.use_cpu:
        torch.set_num_threads(1)
    trainer.remove_callback(PrinterCallback)
    latest = out / LATEST
    resume = str(latest.resolve()) if latest.exists() else None
    with Progress(what, math.ceil(len(trainer.train_dataset) / trainer._train_batch_size)) as bar:
        trainer.add_callback(_Watch(out, bar))
        with _saving(out):
            trainer.train(resume_from_checkpoint=resume)
    history: list[dict[str, float]] = trainer.state.log_history
    return history


@contextmanager
def _saving(out: Path) -> Iterator[None]:
    """Checkpoints are written by torch and safetensors, whose complaints about a full disk are of their own kinds:
    make them the one that everybody else's is."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        if not _REFUSED.search(str(error)):
            raise
        with writing(out):
            raise OSError(errno.ENOSPC, " ".join(str(error).split())) from error


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Points checkpoint-latest at each checkpoint once it is whole, and moves the bar."""

    def __init__(self, out: Path, bar: Progress) -> None:
        self._out, self._bar = out, bar

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar.advance(args.gradient_accumulation_steps)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            fresh = self._out / f".{LATEST}.{os.getpid()}.tmp"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(f"checkpoint-{state.global_step}")
            fresh.replace(self._out / LATEST)
