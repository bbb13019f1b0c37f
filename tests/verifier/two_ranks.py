"""Script of the two ranks that `test_train.py` launches: train a toy verifier, twice; the second time stopped and
resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from r2v.distributed import join, rank, run_rank
from r2v.errors import Interrupted
from r2v.verifier.model import VerifierModel, save
from r2v.verifier.train import encoded, train
from tests.verifier import toy


def train_toy(folder: Path, *, stops: tuple[bool, ...] = ()) -> list[float]:
    """Train for seven updates, of which the last has less than a batch for each rank; return the losses."""
    asked, model = iter(stops), VerifierModel(toy.backbone().double())
    rows, phase = encoded(toy.separable(range(200)), toy.encode), toy.phase(num_epochs=1, batch_size=24)
    done = train(model, rows, phase, seed=0, folder=folder, stop=lambda: next(asked, False))
    if rank() == 0:
        save(model, folder)
    return list(done.losses)


def main(folder: Path) -> None:
    """Run both trainings."""
    join("cpu")
    losses = train_toy(folder / "once")
    try:
        train_toy(folder / "cut", stops=(False, True))
    except Interrupted:
        assert train_toy(folder / "cut") == losses
    if rank() == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(Path(sys.argv[1]))))
