"""CPU-seconds of the main job: per stage, the share spent importing, and the whole.

    python benchmarks/mrp.py            # MRP size: configs/mrp.yaml in a fresh folder
    python benchmarks/mrp.py --full     # every training and evaluation task: configs/desk/full.yaml

Figures are CPU-seconds of this process and all its threads, so a loaded machine changes them less than wall time.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HEAVY = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "sklearn.linear_model",
    "scipy.optimize",
    "r2v.policy.training.trainers",
)


def main() -> None:
    """Run the pipeline once from nothing and print the bill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--overrides", nargs="+", default=[])
    arguments = parser.parse_args()
    begun = time.process_time()
    for name in HEAVY:
        importlib.import_module(name)
    importing = time.process_time() - begun

    from r2v.config import load
    from r2v.log import logger
    from r2v.pipeline.run import run_here

    logger.setLevel(logging.WARNING)
    config = load(Path("configs/desk/full.yaml" if arguments.full else "configs/mrp.yaml"), arguments.overrides)
    with tempfile.TemporaryDirectory() as folder:
        done = run_here(config, root=Path(folder))
        again = run_here(config, root=Path(folder))
    whole = time.process_time() - begun
    print(f"{'imports':<18}{importing:8.1f} CPU-s  {importing / whole:6.1%}")
    for job in done:
        print(f"{job.job:<18}{job.cpu_seconds:8.1f} CPU-s  {job.cpu_seconds / whole:6.1%}")
    second = sum(job.cpu_seconds for job in again)
    print(f"{'a second run':<18}{second:8.1f} CPU-s  {second / whole:6.1%}  ({sum(j.fresh for j in again)} jobs run)")
    print(f"{'whole':<18}{whole:8.1f} CPU-s")


if __name__ == "__main__":
    main()
