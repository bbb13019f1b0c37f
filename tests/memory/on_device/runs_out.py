"""A tiny real training with a module that runs out of memory above so many rows; as a script, run by the ranks of a
launch, of which one alone runs out."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2v.distributed import join, rank, ranks, run_rank
from r2v.memory.on_device.retry_on_oom import RetryResult, retry_on_oom

BATCH = 12


class Runs(nn.Module):
    """Passes its input on, and runs out of memory above `most` rows; `alive` are the activations it has seen."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.seen: list[int] = []
        self.alive: list[weakref.ref[Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        held = x * 1.0
        self.alive.append(weakref.ref(held))
        # The last micro-batch is the one that fails: those before have left their gradients.
        if len(x) > self.most and sum(self.seen[-BATCH:]) >= BATCH:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return held


class Trained:
    """A model, its batch, and a step that takes `rows` of it at a time."""

    def __init__(self, most: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.runs = Runs(most)
        self.model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), self.runs, nn.Linear(16, 1)).double()
        torch.manual_seed(1000 + seed + rank())
        self.x, self.y = torch.randn(BATCH, 5).double(), torch.randn(BATCH, 1).double()

    def step(self, rows: int) -> float:
        """Return the sum of squared errors; their gradients are left in the model."""
        total = 0.0
        for x, y in zip(self.x.split(rows), self.y.split(rows), strict=True):
            loss = (self.model(x) - y).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def run(self, rows: int) -> RetryResult[float]:
        """Take the step, and take it again in smaller parts if it does not fit."""
        return retry_on_oom(self.step, rows, self.model.parameters(), phase="actor")

    @property
    def gradients(self) -> Tensor:
        """Return all gradients, flat."""
        return torch.cat([one.grad.flatten() for one in self.model.parameters() if one.grad is not None])


def train(most: int, updates: int = 5) -> tuple[Tensor, list[int], Any]:
    """Take several updates of AdamW, gradients summed over ranks after the step; return weights, rows at a time, last
    gradient."""
    import torch.distributed as group

    told = Trained(most)
    optimizer = torch.optim.AdamW(told.model.parameters(), lr=0.05)
    rows, taken = BATCH, []
    for _ in range(updates):
        rows = told.run(rows).rows
        taken.append(rows)
        for one in told.model.parameters():
            if group.is_initialized() and one.grad is not None:
                group.all_reduce(one.grad)
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in told.model.parameters()]), taken, told.gradients


def main() -> None:
    """Train twice: once without running out; once the last rank alone does, above 3 rows, or (`never`) always."""
    folder, how = Path(sys.argv[1]), sys.argv[2]
    join("cpu")
    last = rank() == ranks() - 1
    if how == "never":
        train(0 if last else BATCH)
    for name, most in (("whole", BATCH), ("halved", 3 if last else BATCH)):
        torch.save(train(most), folder / f"{name}-{rank()}.pt")


if __name__ == "__main__":
    sys.exit(run_rank(main))
