"""Overhead of an experiment per point, beside Hydra's multirun over the same grid in the same run.

    python benchmarks/sweep.py --points 24

Each point does nothing, so only the sweep is measured. Both start one process per point (Hydra's function runs `true`,
as a point of a command does), because a training needs one; Hydra's own launcher calls the function in its one process,
which is printed too. CPU seconds of all processes and wall seconds, per point: a sweep of N points less one of 1, over
N - 1, so that starting Python counts for neither. hydra-core is installed from PyPI into a venv of its own, and removed
with it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
HYDRA = "hydra-core==1.3.2"
PEER = """\
import subprocess, sys
import hydra

@hydra.main(version_base=None, config_path=".", config_name="base")
def main(config):
    if config.start:
        subprocess.run(["sh", "-c", "true"], check=True)

main()
"""


def measured(words: list[str], folder: Path) -> tuple[float, float]:
    """Return (CPU seconds, wall seconds) of a command and all its children."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip().splitlines()[-1]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def ours(folder: Path, points: int) -> tuple[float, float]:
    """Measure a sweep of R2V."""
    (folder / "base.yaml").write_text("x: 0\n")
    (folder / "spec.yaml").write_text(
        "name: overhead\nmode: training\nbase_config: base.yaml\ncommand: sh -c true {config}\n"
        f"sweep: {{x: {list(range(points))}}}\n"
    )
    command = [sys.executable, "-m", "r2v", "experiments", "run", "--exp", "spec.yaml", "--fresh"]
    return measured(command, folder)


def hydra(folder: Path, python: Path, points: int, start: bool) -> tuple[float, float]:
    """Measure Hydra's multirun over the same grid."""
    (folder / "base.yaml").write_text("x: 0\nstart: true\n")
    (folder / "base.py").write_text(PEER)
    values = ",".join(map(str, range(points)))
    return measured([str(python), "base.py", "--multirun", f"x={values}", f"start={str(start).lower()}"], folder)


def per_point(one: tuple[float, float], many: tuple[float, float], points: int) -> tuple[float, float]:
    return (many[0] - one[0]) / (points - 1), (many[1] - one[1]) / (points - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=24, help="points of the grid (default: 24)")
    points = parser.parse_args().points
    folder = Path(tempfile.mkdtemp(prefix="r2v-sweep-"))
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", HYDRA], check=True)
        rows = {
            "r2v experiments": per_point(ours(folder, 1), ours(folder, points), points),
            "hydra multirun, a process a point": per_point(
                hydra(folder, python, 1, True), hydra(folder, python, points, True), points
            ),
            "hydra multirun, in its one process": per_point(
                hydra(folder, python, 1, False), hydra(folder, python, points, False), points
            ),
        }
    finally:
        shutil.rmtree(folder)
    print(f"{'per point, of ' + str(points):<36} CPU-s     wall s")
    for name, (cpu, wall) in rows.items():
        print(f"{name:<36} {cpu:.4f}    {wall:.4f}")
    mine, peer = rows["r2v experiments"], rows["hydra multirun, a process a point"]
    print(f"r2v / hydra: {mine[0] / peer[0]:.2f} of the CPU time, {mine[1] / peer[1]:.2f} of the wall time")


if __name__ == "__main__":
    main()
