"""Cost of `r2v status` with 500 jobs: calls of squeue and sacct, CPU time and wall time.

    python benchmarks/slurm_status.py
    python benchmarks/slurm_status.py --chains 50 --rounds 9

The jobs are real ones on a private Slurm (tests/slurm/cluster.py): chains of ten, in each five done, one failed, two
running, and two waiting for those. The peer in the same run is the naive way: one sacct for each job id, timed over
twenty of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from r2v.slurm.chain import chain as chains  # noqa: E402
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob  # noqa: E402
from tests.slurm.cluster import Cluster, lacking  # noqa: E402

AIM = 0.5
SCRIPT = """#!/bin/sh
# Write the record of a job of R2V without starting its Python.
folder=outputs/.chains/$1/jobs/$SLURM_JOB_ID
mkdir -p $folder
when='"restart":0,"at":"'$(date -u +%Y-%m-%dT%H:%M:%S+00:00)'"'
echo "{\\"job\\":\\"$2\\",\\"command\\":[\\"$2\\"],\\"host\\":\\"here\\",$when}" > $folder/start.json
for done in 1 2 3; do
    echo "{$when,\\"what\\":\\"$2\\",\\"done\\":$done,\\"total\\":3,\\"loss\\":0.5}" >> $folder/events.jsonl
done
[ "$3" = run ] && exec sleep 1000
kind=null; rc=0; [ "$3" = fail ] && rc=1 && kind='"bug"'
echo "{\\"rc\\":$rc,\\"signal\\":0,\\"kind\\":$kind,\\"line\\":\\"\\",$when}" > $folder/exit.json
exit $rc
"""
LIVES = ("done",) * 5 + ("fail", "waiting", "run", "run", "waiting")
WAITS_FOR = {6: 5, 9: 8}


def submit(cluster: Cluster, folder: Path, name: str) -> list[str]:
    """Submit one chain of ten jobs and write its file."""
    jobs, ids = {}, list[str]()
    for at, life in enumerate(LIVES):
        parent = WAITS_FOR.get(at)
        waits = [] if parent is None else ["--kill-on-invalid-dep=no", f"--dependency=afterok:{ids[parent]}"]
        ids.append(
            cluster.sbatch(
                *waits,
                "-J",
                f"s{at}_{name}",
                f"--comment=r2v:{name}/s{at}/abc",
                "--mem=100M",
                "-p",
                "urgent",
                "-o",
                "/dev/null",
                "job.sh",
                name,
                f"s{at}",
                life,
                cwd=folder,
            )
        )
        needs = () if parent is None else (f"s{parent}",)
        attempt = Attempt(id=ids[at], submitted_at=chains.now())
        jobs[f"s{at}"] = ChainJob(needs=needs, command=(f"s{at}",), script="01_collect.sh", attempts=(attempt,))
    chains.write(folder, Chain(name=name, benchmark="desk", condition="noisy", config_sha="abc", jobs=jobs))
    return ids


def shims(folder: Path, cluster: Cluster) -> dict[str, str]:
    """Return an environment in which each call of Slurm leaves a line in `calls`."""
    (folder / "shims").mkdir()
    for program in ("squeue", "sacct", "scontrol", "sinfo"):
        shim = folder / "shims" / program
        shim.write_text(f'#!/bin/sh\necho {program} >> {folder}/calls\nexec {shutil.which(program)} "$@"\n')
        shim.chmod(0o755)
    return {**cluster.env, "PATH": f"{folder}/shims:{cluster.env['PATH']}", "PYTHONPATH": str(ROOT)}


def once(folder: Path, environment: dict[str, str]) -> tuple[float, float, int, str]:
    """Run `r2v status` once; return CPU seconds with all children, wall seconds, exit code and output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "r2v", "status", "--json"],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert done.returncode in (0, 1, 10), done.stderr
    return cpu, wall, done.returncode, done.stdout


def main() -> None:
    """Fill the queue, run `r2v status`, and print its cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=50, help="of ten jobs each")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "job.sh").write_text(SCRIPT)
        ids = [job_id for at in range(arguments.chains) for job_id in submit(cluster, folder, f"c{at:02}")]
        alive = 4 * arguments.chains
        cluster.wait(
            lambda: (
                len(cluster.squeue()) == alive
                and sum(line.endswith("RUNNING") for line in cluster.squeue()) == alive // 2
            ),
            timeout=600,
            every=1,
        )
        cluster.wait(
            lambda: cluster.run("sacct", "-nXPo", "State").stdout.count("COMPLETED") >= 5 * arguments.chains,
            timeout=60,
            every=1,
        )
        environment = shims(folder, cluster)
        runs = [once(folder, environment) for _ in range(arguments.rounds)]
        calls = (folder / "calls").read_text().split()
        began = time.perf_counter()
        for job_id in ids[:20]:
            cluster.run("sacct", "-nXPj", job_id, "-o", "State")
        naive = (time.perf_counter() - began) / 20 * len(ids)
        report = json.loads(runs[-1][3])
        cpu, wall = statistics.median(row[0] for row in runs), statistics.median(row[1] for row in runs)
        print(f"{len(ids)} jobs in {arguments.chains} chains, {alive} of them in the queue; exit code {runs[-1][2]}")
        print(
            "calls in one status: "
            + ", ".join(
                f"{calls.count(name) / arguments.rounds:g} {name}" for name in ("squeue", "sacct", "scontrol", "sinfo")
            )
        )
        print(f"CPU {cpu:.2f} s, wall {wall:.2f} s (aim: {AIM} s), median of {arguments.rounds}")
        print(f"one sacct for each job: {naive:.1f} s")
        states = Counter(job["state"] for chain in report["chains"] for job in chain["jobs"])
        print("states: " + ", ".join(f"{count} {state}" for state, count in states.most_common()))


if __name__ == "__main__":
    main()
