"""Placements, ways of training and ways of sharding that work together, each cell run on two gloo ranks of this CPU.

    python benchmarks/sharding_table.py                              # the table of docs/hierarchical.md, in minutes
    python benchmarks/sharding_table.py --shards fsdp --placement full

A cell works if two ranks build the roles, are stopped between the actor's and the guidance's update, resume from the
checkpoint in new roles, and reach the losses of one unsharded process without a stop. The number is the largest
difference of a loss. A cell that does not work shows the letter of a reason below the table: the product's own error.
All roles are on the CPU, so the table shows which code works together, not that memory is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import EnvironmentFault, Interrupted, R2VError
from tests.hrl import trainers

PLACEMENTS = ("shared", "full", "split")
TRAINED = ("LoRA", "full", "4-bit")
SHARDS = ("none", "zero2", "zero3", "fsdp")
ALONE = "alone"
"""Value of `Cell.shards` for one process."""
TOLERANCE = {"LoRA": 1e-6, "full": 1e-6, "4-bit": 1e-2}
"""Largest difference of a loss: DeepSpeed's master weights are float32, 4-bit weights compute in bfloat16."""
BEFORE_GUIDANCE = 5
"""Phases of the first iteration after which a run is stopped: the actor has been updated, the guidance has not."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination; `shards` is a value of `hierarchical.shards`, or `alone`."""

    placement: str
    trained: str
    shards: str

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return "-".join((self.placement, self.trained, self.shards))

    @property
    def settings(self) -> HierarchicalConfig:
        """Return its configuration: two iterations, each with updates of critic, actor and guidance."""
        placed: dict[str, Any] = {"placement": self.placement}
        if self.shards != ALONE:
            placed["shards"] = self.shards
        critic = replace(trainers.BASE.critic, warmup=0)
        return replace(trainers.BASE, iterations=2, critic=critic, **placed)

    @property
    def policy(self) -> dict[str, Any]:
        """Return the policy's options."""
        return {"lora": 0 if self.trained == "full" else 4, "load_in_4bit": self.trained == "4-bit"}


def run(cell: Cell, folder: Path, model: Path) -> str:
    """Train the cell, stopped and resumed unless it is one process; return "" or the reason for a failure."""
    stops = [] if cell.shards == ALONE else [iter([False] * (BEFORE_GUIDANCE - 1) + [True])]
    try:
        for stop in stops:
            try:
                trainers.trainer_of(model, folder, cell.settings, stop=partial(next, stop), **cell.policy).run()
            except Interrupted:
                distributed.wait_for_all()
        trainers.trainer_of(model, folder, cell.settings, **cell.policy).run()
    except R2VError as error:
        return str(error)
    return ""


def run_all(cells: Sequence[Cell], folder: Path, model: Path) -> None:
    """Run cells one after the other on this rank; rank 0 records their results."""
    distributed.join("cpu")
    for cell in cells:
        reason = run(cell, folder / cell.name, model)
        distributed.wait_for_all()
        if distributed.rank() == 0:
            (folder / f"{cell.name}.json").write_text(json.dumps({"reason": reason}))


def measured(cells: Sequence[Cell], folder: Path, model: Path) -> dict[Cell, str]:
    """Run cells in launches of two ranks, a new one after each crash; return the reasons of failed cells."""
    reasons: dict[Cell, str] = {}
    left = list(cells)
    while left:
        names = [f"{cell.placement}/{cell.trained}/{cell.shards}" for cell in left]
        crash = ""
        try:
            distributed.launch(2, str(Path(__file__).resolve()), "--rank", str(folder), str(model), *names)
        except EnvironmentFault as fault:
            crash = str(fault)
        for cell in list(left):
            record = folder / f"{cell.name}.json"
            if record.exists():
                reasons[cell] = json.loads(record.read_text())["reason"]
            elif crash:
                reasons[cell], crash = crash, ""
            else:
                break
            left.remove(cell)
    return reasons


def table(cells: Sequence[Cell], reasons: dict[Cell, str], folder: Path) -> Iterator[str]:
    """Yield the lines of the Markdown table and of the reasons below it."""
    columns = [shards for shards in SHARDS if any(cell.shards == shards for cell in cells)]
    letters: dict[str, str] = {}
    yield f"| placement | trained | {' | '.join(columns)} |"
    yield "|" + "---|" * (2 + len(columns))
    for placement, trained in dict.fromkeys((cell.placement, cell.trained) for cell in cells):
        shown = []
        for shards in columns:
            cell = Cell(placement=placement, trained=trained, shards=shards)
            reason = reasons[cell].replace(f"shards={shards}", "shards=...") or difference(cell, folder)
            shown.append(reason if reason.startswith("yes") else letters.setdefault(reason, chr(97 + len(letters))))
        yield f"| {placement} | {trained} | {' | '.join(shown)} |"
    yield ""
    yield from (f"- {letter}: {reason}" for reason, letter in letters.items())


def difference(cell: Cell, folder: Path) -> str:
    """Return "yes" with the largest difference of a loss to that of one process, or the reason why it is too large."""
    ours, alone = (trainers.losses(folder / one.name) for one in (cell, replace(cell, shards=ALONE)))
    if len(ours) != len(alone):
        return f"{len(ours)} losses where one process has {len(alone)}"
    largest = max(abs(one - other) for one, other in zip(ours, alone, strict=True))
    if largest > TOLERANCE[cell.trained]:
        return f"a loss differs by {largest:.1g} from that of one process"
    return f"yes, {largest:.0e}"


def main() -> None:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=PLACEMENTS)
    parser.add_argument("--trained", nargs="+", choices=TRAINED, default=TRAINED)
    parser.add_argument("--shards", nargs="+", choices=SHARDS, default=SHARDS)
    options = parser.parse_args()
    rows = list(product(options.placement, options.trained))
    cells = [Cell(placement=p, trained=t, shards=s) for s in options.shards for p, t in rows]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = trainers.model_at(folder / "model")
        alone = {
            row: run(Cell(placement=row[0], trained=row[1], shards=ALONE), folder / f"{'-'.join(row)}-{ALONE}", model)
            for row in rows
        }
        tried = [cell for cell in cells if not alone[cell.placement, cell.trained]]
        reasons = {cell: alone[cell.placement, cell.trained] for cell in cells if cell not in tried}
        for shards in options.shards:
            reasons |= measured([cell for cell in tried if cell.shards == shards], folder, model)
        print(
            "\n".join(
                table(
                    [cell for row in rows for cell in cells if (cell.placement, cell.trained) == row], reasons, folder
                )
            )
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        folder, model, *names = sys.argv[2:]
        split = (name.split("/") for name in names)
        own = [Cell(placement=p, trained=t, shards=s) for p, t, s in split]
        sys.exit(distributed.run_rank(lambda: run_all(own, Path(folder), Path(model))))
    main()
