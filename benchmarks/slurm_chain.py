"""What stands between two stages of a chain: from the end of a parent's code to the start of its child's own.

    python benchmarks/slurm_chain.py                  # ours, a bare sbatch chain, Snakemake's Slurm executor
    python benchmarks/slurm_chain.py --stages 10 --no-snakemake

All run on the same private Slurm (tests/slurm/cluster.py), one after another, the same program at every stage: it
notes the time in its first line and in its last, and stands still for some seconds between, as a stage that works does.
What is loaded before a stage's own code begins counts: R2V, its command line, Snakemake's. The bare chain checks
nothing, heals nothing and records nothing: it is the floor, run before ours and after it. Snakemake gets a virtual
environment of its own, made here. Printed: ours beside the floor, and Snakemake beside ours.
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
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from r2v.config import load, to_yaml  # noqa: E402
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
time.sleep(float(open("seconds").read()))
open(f"stamp-{sys.argv[1]}", "w").write(f"{began} {time.time()}")
"""
STAND_IN = """import os, runpy, sys
run_module = runpy.run_module
def stamp(name, *rest, **named):
    if name != "r2v" or sys.argv[1:2] != ["stamp"]:
        return run_module(name, *rest, **named)
    from r2v.cli.main import stage_parser  # what a stage of ours loads before its own code begins
    stage_parser()
    sys.argv = ["stamp.py", sys.argv[2]]
    exec(open("stamp.py").read())
    os._exit(0)
runpy.run_module = stamp
"""
"""Takes the place of a stage in the fork of our runner, behind the command line that a stage of ours has."""
AIM, AIM_BESIDE_SNAKEMAKE = 1.5, 20.0


def gaps(folder: Path, stages: int) -> list[float]:
    """Seconds between the end of each stage and the start of the next."""
    stamps = [tuple(map(float, (folder / f"stamp-{at}").read_text().split())) for at in range(stages)]
    return [after[0] - before[1] for before, after in zip(stamps, stamps[1:], strict=False)]


def bare(cluster: Cluster, folder: Path, stages: int) -> list[float]:
    """sbatch --dependency=afterok and nothing else."""
    before: tuple[str, ...] = ()
    for at in range(stages):
        job = cluster.sbatch(*before, "-o", "/dev/null", f"--wrap={sys.executable} stamp.py {at}", cwd=folder)
        before = (f"--dependency=afterok:{job}",)
    cluster.wait((folder / f"stamp-{stages - 1}").exists, timeout=120)
    time.sleep(0.2)  # the last line may still be on its way
    return gaps(folder, stages)


def ours(cluster: Cluster, folder: Path, stages: int) -> list[float]:
    """A chain of ours, sentinels, records and all, whose stages are the same program."""
    name = folder.name
    (folder / "sitecustomize.py").write_text(STAND_IN)
    jobs = {
        f"s{at}": ChainJob(
            needs=(f"s{at - 1}",) if at else (), command=("stamp", str(at), "--output", "none"), script=""
        )
        for at in range(stages)
    }
    text = to_yaml(load(None, []))
    asked, sha = SiteProfile().sentinel_directives({}), config_sha(text)
    chain = Chain(name=name, benchmark="desk", condition="noisy", config_sha=sha, sentinel=asked, jobs=jobs)
    chains.write(folder, chain)
    (chains.folder(folder, name) / "config.yaml").write_text(text)
    os.environ.update({**cluster.env, "PYTHONPATH": f"{folder}:{ROOT}"})
    before = Path.cwd()
    os.chdir(folder)
    try:
        began = time.perf_counter()
        for job in jobs:
            planned = Attempt(id="", resources={"mem": "512M", "time": "10"}, reason="first")
            chain = chain.with_job(job, planned=planned)
        chains.write(Path(), chain)
        if undone := reconcile(name):
            raise RuntimeError("; ".join(undone))
        print(f"(r2v: {stages} jobs and their sentinels submitted in {time.perf_counter() - began:.1f} s)")
    finally:
        os.chdir(before)
    cluster.wait(lambda: not cluster.squeue(), timeout=300)
    return gaps(folder, stages)


def snakemake(cluster: Cluster, folder: Path, stages: int, program: Path, *options: str) -> list[float]:
    """The same chain as rules; the resident controller submits each when it has seen its parent end."""
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
    """The program, or why there is none."""
    made = subprocess.run([sys.executable, "-m", "venv", folder / "venv"], capture_output=True, text=True, check=False)
    pip = [str(folder / "venv/bin/pip"), "--quiet", "--disable-pip-version-check", "install"]
    if made.returncode == 0:
        made = subprocess.run(
            [*pip, "snakemake==9.27.1", "snakemake-executor-plugin-slurm==2.8.0"],
            capture_output=True,
            text=True,
            check=False,
        )
    return folder / "venv/bin/snakemake" if made.returncode == 0 else made.stderr.strip().splitlines()[-1]


def tell(name: str, found: list[float], beside: str = "") -> float:
    """Print one row; returns the median."""
    middle = statistics.median(found)
    print(f"{name:<34}{middle:8.2f} s  {min(found):6.2f} to {max(found):6.2f}   {beside}", flush=True)
    return middle


def main() -> None:
    """Run the chains and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=8, help="stages of a chain (default: 8)")
    parser.add_argument("--snakemake-stages", type=int, default=3, help="the same for Snakemake (default: 3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="that each stage works (default: 3)")
    parser.add_argument("--no-snakemake", action="store_true")
    arguments = parser.parse_args()
    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:

        def chain(run: Callable[..., list[float]], name: str, stages: int, *more: object) -> list[float]:
            folder = Path(scratch) / name
            folder.mkdir()
            (folder / "stamp.py").write_text(STAMP)
            (folder / "seconds").write_text(str(arguments.seconds))
            return run(cluster, folder, stages, *more)

        print(f"{'end of parent to own code':<34}{'median':>10}  fastest to slowest")
        before = chain(bare, "bare", arguments.stages)
        mine = chain(ours, "ours", arguments.stages)
        floor = tell("bare sbatch", before + chain(bare, "bare again", arguments.stages))
        whole = tell("r2v", mine, f"{statistics.median(mine) / floor:6.2f} x bare (aim {AIM})")
        if arguments.no_snakemake:
            return
        program = install_snakemake(Path(scratch))
        if isinstance(program, str):
            print(f"Snakemake could not be installed here: {program}")
            return
        quick = ("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1")
        for name, options in (("Snakemake, Slurm executor", ()), ("Snakemake, asking each second", quick)):
            found = chain(snakemake, name.replace(" ", "-"), arguments.snakemake_stages, program, *options)
            aim = f" (aim {AIM_BESIDE_SNAKEMAKE:.0f})" if not options else ""
            tell(name, found, f"{statistics.median(found) / whole:6.2f} x r2v{aim}")
        shutil.rmtree(Path(scratch) / "venv")


if __name__ == "__main__":
    main()
