"""The gap between two stages of a chain: from the end of a parent's code to the start of its child's own.

    python benchmarks/slurm_chain.py                  # ours, a bare sbatch chain, Snakemake's Slurm executor: 12 min
    python benchmarks/slurm_chain.py --no-snakemake   # 8 min, nearly all of it waiting

All run on the same private Slurm (tests/slurm/cluster.py), one after another, the same program at every stage: it
records the time in its first line and in its last, and sleeps for some seconds between. The sleep differs between
stages by up to a second, and is the same in both chains: Slurm's scheduler ticks once a second, so stages of equal
length would all end at the same point of its tick. Imports before a stage's own code count: R2V, its command line,
Snakemake's. The bare chain checks nothing, heals nothing and records nothing: it is the floor. Ours and the floor take
turns, and the order alternates. Snakemake gets a virtual environment of its own, made here. Printed: ours beside the
floor as the ratio of mean gaps, with a 95 % bootstrap interval over gaps, and Snakemake beside ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from r2v.config import load, to_yaml  # noqa: E402
from r2v.randomness import seed_of, uniform  # noqa: E402
from r2v.slurm.chain import chain as chains  # noqa: E402
from r2v.slurm.chain.chain import (  # noqa: E402
    Attempt,
    Chain,
    ChainJob,
    config_sha,
)
from r2v.slurm.healing.reconcile import reconcile  # noqa: E402
from r2v.slurm.site.site_profile import SiteProfile  # noqa: E402
from tests.slurm.cluster import Cluster, lacking  # noqa: E402

STAMP = """import time; began = time.time()
import sys
time.sleep(float(open("seconds").read().split()[int(sys.argv[1])]))
open(f"stamp-{sys.argv[1]}", "w").write(f"{began} {time.time()}")
"""
STAND_IN = """import os, runpy, sys
run_module = runpy.run_module
def stamp(name, *rest, **named):
    if name != "r2v" or sys.argv[1:2] != ["stamp"]:
        return run_module(name, *rest, **named)
    from r2v.cli.main import stage_parser  # imports of a stage of ours before its own code begins
    stage_parser()
    sys.argv = ["stamp.py", sys.argv[2]]
    exec(open("stamp.py").read())
    os._exit(0)
runpy.run_module = stamp
"""
"""Takes the place of a stage in the fork of our runner, behind the command line that a stage of ours has."""
AIM, AIM_BESIDE_SNAKEMAKE = 1.5, 20.0
RESAMPLES = 10_000


def gaps(folder: Path, stages: int) -> list[float]:
    """Return the seconds between the end of each stage and the start of the next."""
    stamps = [tuple(map(float, (folder / f"stamp-{at}").read_text().split())) for at in range(stages)]
    return [after[0] - before[1] for before, after in zip(stamps, stamps[1:], strict=False)]


def bare(cluster: Cluster, folder: Path, stages: int) -> list[float]:
    """Run a chain of sbatch --dependency=afterok and nothing else."""
    before: tuple[str, ...] = ()
    for at in range(stages):
        job = cluster.sbatch(*before, "-o", "/dev/null", f"--wrap={sys.executable} stamp.py {at}", cwd=folder)
        before = (f"--dependency=afterok:{job}",)
    cluster.wait((folder / f"stamp-{stages - 1}").exists, timeout=120)
    time.sleep(0.2)  # the last line may still be on its way
    return gaps(folder, stages)


def ours(cluster: Cluster, folder: Path, stages: int) -> list[float]:
    """Run a chain of ours, with sentinels and records, whose stages are the same program."""
    name = folder.name
    (folder / "sitecustomize.py").write_text(STAND_IN)
    jobs = {
        f"s{at}": ChainJob(
            needs=(f"s{at - 1}",) if at else (), command=("stamp", str(at), "--output", "none"), script=""
        )
        for at in range(stages)
    }
    text = to_yaml(load(None, []))
    directives, sha = SiteProfile().sentinel_directives({}), config_sha(text)
    chain = Chain(name=name, benchmark="desk", condition="noisy", config_sha=sha, sentinel=directives, jobs=jobs)
    chains.write(folder, chain)
    (chains.folder(folder, name) / "config.yaml").write_text(text)
    os.environ.update({**cluster.env, "PYTHONPATH": f"{folder}:{ROOT}"})
    before = Path.cwd()
    os.chdir(folder)
    try:
        for job in jobs:
            planned = Attempt(id="", resources={"mem": "512M", "time": "10"}, reason="first")
            chain = chain.with_job(job, planned=planned)
        chains.write(Path(), chain)
        if undone := reconcile(name):
            raise RuntimeError("; ".join(undone))
    finally:
        os.chdir(before)
    cluster.wait(lambda: not cluster.squeue(), timeout=300)
    return gaps(folder, stages)


def snakemake(cluster: Cluster, folder: Path, stages: int, program: Path, *options: str) -> list[float]:
    """Run the same chain as rules; the resident controller submits each when it has seen its parent end."""
    rules = [f"rule all:\n    input: 'done-{stages - 1}'\n"]
    for at in range(stages):
        given = f"    input: 'done-{at - 1}'\n" if at else ""
        rules.append(
            f"rule s{at}:\n{given}    output: 'done-{at}'\n"
            f"    shell: '{sys.executable} stamp.py {at} && touch done-{at}'\n"
        )
    (folder / "Snakefile").write_text("\n".join(rules))
    srun = folder / "bin" / "srun"  # Snakemake empties SLURM_*: at a site, srun then reads /etc/slurm
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={cluster.env["SLURM_CONF"]} exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    cluster.run(
        program,
        "--executor",
        "slurm",
        "--jobs",
        "10",
        "--slurm-no-account",
        "--default-resources",
        "slurm_partition=cpu",
        "mem_mb=512",
        "runtime=10",
        *options,
        cwd=folder,
        env={"PATH": f"{srun.parent}:{program.parent}:{cluster.env['PATH']}"},
        timeout=1500,
    )
    return gaps(folder, stages)


def install_snakemake(folder: Path) -> Path | str:
    """Return the program's path, or the reason for a failed installation."""
    completed = subprocess.run(
        [sys.executable, "-m", "venv", folder / "venv"], capture_output=True, text=True, check=False
    )
    pip = [str(folder / "venv/bin/pip"), "--quiet", "--disable-pip-version-check", "install"]
    if completed.returncode == 0:
        completed = subprocess.run(
            [*pip, "snakemake==9.27.1", "snakemake-executor-plugin-slurm==2.8.0"],
            capture_output=True,
            text=True,
            check=False,
        )
    return folder / "venv/bin/snakemake" if completed.returncode == 0 else completed.stderr.strip().splitlines()[-1]


def ratio(ours: Sequence[float], floor: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the mean gaps and its 95 % bootstrap interval; gaps are resampled on both sides."""
    random = np.random.default_rng(seed_of("slurm_chain"))
    draws = [random.choice(np.array(some), (RESAMPLES, len(some))).mean(axis=1) for some in (ours, floor)]
    low, high = np.quantile(draws[0] / draws[1], (0.025, 0.975))
    return statistics.fmean(ours) / statistics.fmean(floor), float(low), float(high)


def judgement(low: float, high: float) -> str:
    """Return the verdict on the aim by the interval."""
    return f"aim of {AIM}: {'met' if high <= AIM else 'missed' if low > AIM else 'undecided'}"


def tell(name: str, gaps: Sequence[float], beside: str = "") -> None:
    """Print one row."""
    print(
        f"{name:<30}{len(gaps):5d}{statistics.fmean(gaps):8.2f} s{statistics.median(gaps):8.2f} s"
        f"{min(gaps):8.2f} to {max(gaps):5.2f}   {beside}",
        flush=True,
    )


def main() -> None:
    """Run the chains and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=11, help="stages of a chain (default: 11)")
    parser.add_argument("--turns", type=int, default=6, help="chains of each kind (default: 6)")
    parser.add_argument("--snakemake-stages", type=int, default=3, help="stages of its one chain (default: 3)")
    parser.add_argument("--seconds", type=float, default=2.5, help="mean time that a stage works (default: 2.5)")
    parser.add_argument("--no-snakemake", action="store_true")
    arguments = parser.parse_args()
    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    began = time.perf_counter()
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:

        def chain(run: Callable[..., list[float]], name: str, stages: int, turn: int, *more: object) -> list[float]:
            folder = Path(scratch) / f"{name}-{turn}"
            folder.mkdir()
            (folder / "stamp.py").write_text(STAMP)
            lengths = (arguments.seconds - 0.5 + uniform("slurm_chain", turn, at) for at in range(stages))
            (folder / "seconds").write_text(" ".join(map(str, lengths)))
            return run(cluster, folder, stages, *more)

        floor, mine = list[float](), list[float]()
        kinds = [(floor, partial(chain, bare, "bare")), (mine, partial(chain, ours, "ours"))]
        for turn in range(arguments.turns):
            for gaps, run in kinds[:: -1 if turn % 2 else 1]:
                gaps += run(arguments.stages, turn)
        loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
        print(f"{'end of parent to own code':<30}{'gaps':>5}{'mean':>10}{'median':>10}  fastest to slowest")
        tell("bare sbatch", floor)
        middle, low, high = ratio(mine, floor)
        tell("r2v", mine, f"{middle:.2f} [{low:.2f}, {high:.2f}] x bare; {judgement(low, high)}")
        print(f"(load averages {loads} on {os.cpu_count()} cores; {(time.perf_counter() - began) / 60:.0f} min)")
        if arguments.no_snakemake:
            return
        program = install_snakemake(Path(scratch))
        if isinstance(program, str):
            print(f"Snakemake could not be installed here: {program}")
            return
        quick = ("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1")
        for name, options in (("Snakemake, Slurm executor", ()), ("Snakemake, polling every second", quick)):
            gaps = chain(snakemake, name.replace(" ", "-"), arguments.snakemake_stages, 0, program, *options)
            aim = f" (aim {AIM_BESIDE_SNAKEMAKE:.0f})" if not options else ""
            tell(name, gaps, f"{statistics.fmean(gaps) / statistics.fmean(mine):.2f} x r2v{aim}")
        shutil.rmtree(Path(scratch) / "venv")


if __name__ == "__main__":
    main()
