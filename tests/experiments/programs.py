"""A program to sweep over that records its start and end in a ledger, and an experiment of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from r2v.experiments.records import ExperimentRecord, experiments, read_record

PROGRAM = """\
x=$(sed -n 's/^x: //p' "$1"); seconds=$(sed -n 's/^seconds: //p' "$1")
echo "begin $x $(sha256sum < "$1" | cut -c1-64)" >> ledger
sleep "$seconds"; test -e broken && exit 3
shift; echo "flags $*"
echo "{\\"score\\": $x}" > "$R2V_RUN_DIR/metrics.json"
echo "end $x" >> ledger
"""


@dataclass(frozen=True)
class Sweep:
    """A folder with a program, a base configuration and a specification."""

    folder: Path

    @property
    def spec(self) -> Path:
        return Path("configs/experiments/sweep.yaml")

    def write(self, count: int, *, seconds: float = 0, mode: str = "training", more: str = "") -> Path:
        """Write the specification of `count` points and return its path."""
        (self.folder / "configs" / "experiments").mkdir(parents=True, exist_ok=True)
        (self.folder / "program.sh").write_text(PROGRAM)
        (self.folder / "configs" / "base.yaml").write_text(f"x: 0\nseconds: {seconds}\nepochs: 9\n")
        head = f"name: sweep\nmode: {mode}\nbase_config: configs/base.yaml\nmetric: score\n"
        text = f"{head}command: sh program.sh {{config}}\n"
        (self.folder / self.spec).write_text(f"{text}sweep: {{x: {list(range(1, count + 1))}}}\n{more}")
        return self.spec

    @property
    def ledger(self) -> list[list[str]]:
        path = self.folder / "ledger"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def counts(self, what: str) -> Counter[str]:
        return Counter(line[1] for line in self.ledger if line[0] == what)

    def record(self) -> ExperimentRecord:
        """Return the record of the newest experiment."""
        return read_record(list(experiments())[-1])

    def figures(self) -> list[tuple[int, float]]:
        """Return (x, score) of every completed run of the newest experiment."""
        runs = [run for run in self.record().runs if run.status == "completed"]
        scores = [json.loads((Path(run.run_dir) / "metrics.json").read_text())["score"] for run in runs]
        return [(run.values["x"], score) for run, score in zip(runs, scores, strict=True)]
