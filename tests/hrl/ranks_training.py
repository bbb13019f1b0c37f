"""Script of the ranks that `test_ranks_training.py` launches, or of one process alone: single updates, then whole
trainings."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig, KLConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.training_batch import POLICY_STATISTICS, TrainingBatch, policy_loss_fn
from r2v.hrl.parallel import ranks
from r2v.hrl.training.optimizer_step import Network, optimizer_step
from r2v.hrl.types import Completion
from r2v.randomness import generator
from tests.hrl import trainers

CPU_MICRO_BATCH, STEPS = 8, 20
H = HierarchicalConfig(per="token", kl=KLConfig(first=0.1, later=0.1))


def said() -> list[Completion]:
    """Return utterances of very unequal lengths: rank 1 of 2 has the long ones."""
    draw, rows = generator("said"), []
    for row in range(CPU_MICRO_BATCH):
        tokens = tuple(draw.randrange(5, 60) for _ in range(1 + 11 * (row % 2) + row // 2))
        rows.append(
            Completion(
                prompt=(2, *(draw.randrange(5, 60) for _ in range(1 + row % 3))),
                tokens=tokens,
                logprobs=tuple(-draw.random() for _ in tokens),
                ended=True,
                version=0,
                text="",
            )
        )
    return rows


def batch(rows: list[Completion]) -> TrainingBatch:
    """Return a batch in which every utterance was better than expected, the long ones more so."""
    table = torch.zeros(len(rows), max(len(one.tokens) for one in rows), dtype=torch.float64)
    for row, one in enumerate(rows):
        table[row, : len(one.tokens)] = torch.tensor(one.logprobs)
    return TrainingBatch(
        advantage=torch.tensor([0.2 + 0.8 * (row % 2) for row in range(CPU_MICRO_BATCH)], dtype=torch.float64),
        beta=torch.full((CPU_MICRO_BATCH,), 0.1, dtype=torch.float64),
        behaviour=table,
        reference=table - 0.1,
    )


def steps(micro_batch_size: int = 3, per: str = "token") -> dict[str, Any]:
    """Take 20 steps of a policy, each rank on its rows; return them, and the first with a mean per rank for
    comparison."""
    model, rows, h = trainers.language_model(), said(), replace(H, per=per)
    network = Network(
        "actor", model.parameters(), lr=1e-2, clip=1.0, micro_batch_size=micro_batch_size, setting="hierarchical.lr"
    )
    own, part = ranks.local_share(range(CPU_MICRO_BATCH)), policy_loss_fn(model, "cpu", rows, batch(rows), h)
    with torch.no_grad():
        loss, statistics = part(own)
    whole = sum(len(one.tokens) for one in rows) if per == "token" else CPU_MICRO_BATCH
    mine = float(statistics[3]) if per == "token" else len(own)
    wrong = loss.double() * whole / mine / distributed.ranks()
    ranks.all_reduce([wrong])
    losses = [optimizer_step(network, own, part, POLICY_STATISTICS).loss for _ in range(STEPS)]
    return {
        "losses": losses,
        "mean_per_rank": float(wrong),
        "weights": torch.cat([one.detach().reshape(-1) for one in model.parameters()]).tolist(),
    }


def not_a_number() -> dict[str, Any]:
    """Make the last rank's loss NaN; return each rank's message, and True if a weight moved."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    network = Network("critic", [weight], lr=1e-2, clip=1.0, micro_batch_size=2, setting="hierarchical.critic.lr")
    here = float("nan") if distributed.rank() == distributed.ranks() - 1 else 1.0

    def part(chosen: Any) -> tuple[Tensor, Tensor]:
        return (weight * here).sum() * len(chosen), weight.new_zeros(0)

    try:
        optimizer_step(network, range(4), part)
        said = ""
    except UsageError as refused:
        said = str(refused)
    moved = float((weight.detach() - 1).abs().max())
    return {
        "said": said,
        "moved": moved,
        "again": optimizer_step(
            network, range(4), lambda chosen: ((weight**2).sum() * len(chosen), weight.new_zeros(0))
        ).loss,
    }


def everything(folder: Path, model: Path) -> None:
    """Run every case and write its results for the test."""
    distributed.join("cpu")
    made = {"token": steps(), "sequence": steps(per="sequence"), "nan": not_a_number()}
    (folder / f"rank-{distributed.rank()}.json").write_text(json.dumps(made))
    trainers.trainer_of(model, folder / "together", micro_batch_size=3).run()


def dying(folder: Path, model: Path) -> None:
    """Train; the other rank is killed in the middle of the third iteration."""
    distributed.join("cpu")
    calls = iter(range(99))

    def stop() -> bool:
        if distributed.rank() == 1 and next(calls) == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    trainers.trainer_of(model, folder / "dying", stop=stop).run()


if __name__ == "__main__":
    act = {"everything": everything, "dying": dying}[sys.argv[1]]
    sys.exit(distributed.run_rank(lambda: act(Path(sys.argv[2]), Path(sys.argv[3]))))
