"""The main job again with other seeds: in how many does r2v's lead over entropy hold?

    python benchmarks/mrp_seeds.py --seeds 1 2 3 4 5

Each seed trains another student, verifier and router on the same teacher's episodes and plays the same tasks,
ablations aside: some 430 CPU-seconds, and what is made is not made again. Printed: the lead in APGR at equal dollars
with its 95 % interval over tasks, by seed and condition, and in how many seeds the interval is above 0.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from r2v.config import load
from r2v.config.methods import OURS
from r2v.pipeline.run import run_here

RIVAL = "entropy_router"


def leads(results: Path) -> dict[str, tuple[float, float, float]]:
    """Condition -> (lead in APGR, its interval's ends)."""
    with (results / "structured_results" / "comparisons.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["metric"] == "apgr"]
    return {
        row["condition"]: (float(row["difference"]), float(row["ci_lower"]), float(row["ci_upper"]))
        for row in rows
        if (row["method_a"], row["method_b"]) == (OURS, RIVAL)
    }


def main() -> None:
    """Run each seed, then count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/mrp.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    asked = parser.parse_args()
    found = {}
    for seed in asked.seeds:
        config = load(asked.config, [f"seed={seed}", f"prefix=mrp-seed{seed}"])
        evaluated = run_here(config, without=["ablations"])[-1].artifact.folder
        found[seed] = leads(evaluated)
        for condition, (lead, low, high) in found[seed].items():
            print(f"seed {seed}  {condition:<6}  {lead:+.3f} [{low:+.3f}, {high:+.3f}]", flush=True)
    for condition in next(iter(found.values())):
        above = sum(one[condition][1] > 0 for one in found.values())
        print(f"{condition}: r2v leads {RIVAL} with an interval above 0 in {above} of {len(found)} seeds")


if __name__ == "__main__":
    main()
