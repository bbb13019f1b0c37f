"""Queue changes and job starts of a checkout on a real private Slurm, as lines to compare two checkouts by.

    python benchmarks/slurm_sequence.py                    # of this checkout, about three minutes on two cores
    python benchmarks/slurm_sequence.py ../other > other   # of another one; then: diff
    python benchmarks/slurm_sequence.py . healed           # one of the drills

    clean      the whole pipeline, nothing fails
    healed     one stage runs out of GPU memory: its sentinel resubmits it, its dependents keep their ids
    code       one stage has a bug: nothing is resubmitted until `r2v resume`
    requeued   one stage gets the warning of its time limit: it stops, and goes back into the queue under its id

First come the calls that change the queue (sbatch, scontrol update, scontrol requeue), in order, then every start of
every job by accounting. Names are positions: `preference#2` is the second job submitted for that stage, `heal#1` the
first sentinel of the chain, which watches all of its stages. The checkout is driven through its own command line and
stand-in stages (tests/slurm), so only behaviour is compared, not the names of modules.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALONE = ("--without", "router", "evaluate", "ablations", "--overrides", "training.preference.lr=3e-4")

SBATCH = """#!/bin/bash
out=$({program} "$@"); code=$?
header="${{@: -1}}"; [ -f "$header" ] || header=/dev/null
options=$({{ printf '%s\\n' "$@"; sed -n 's/^#SBATCH //p' "$header"; }})
words=$(grep -E '^--(comment|dependency)=' <<< "$options" | tr -d "'\\"")
[[ $code != 0 || " $* " == *" --test-only "* ]] || echo "sbatch ${{out##* }} $(echo $words)" >> {calls}
[ -z "$out" ] || printf '%s\\n' "$out"
exit $code
"""
SCONTROL = """#!/bin/bash
case $1 in update|requeue) echo "$*" >> {calls};; esac
exec {program} "$@"
"""


def recorded(project: Any) -> None:
    """Wrap Slurm's programs: each call of a command or sentinel that changes the queue adds a line to `calls`."""
    folder = project.folder / "recorders"
    folder.mkdir()
    for program, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
        recorder = folder / program
        program_path = shutil.which(program, path=project.env["PATH"])
        recorder.write_text(text.format(program=program_path, calls=project.folder / "calls"))
        recorder.chmod(0o755)
    project.env = {**project.env, "PATH": f"{folder}:{project.env['PATH']}"}


def clean(project: Any) -> None:
    """Run the pipeline without a failure."""
    project.run("bash", "run_all.sh", "desk")


def finished(project: Any) -> None:
    """Run the whole pipeline without Slurm."""
    project.r2v("run", "--config", "configs/desk/noisy.yaml")


def healed(project: Any) -> None:
    """Run a stage with too little GPU memory for the first micro-batch."""
    finished(project)
    project.behave(preference={"cuda_oom_above": 4})
    project.r2v("run_all", "desk", *ALONE)


def code(project: Any) -> None:
    """Run a stage with a bug, which is fixed by hand."""
    finished(project)
    project.behave(preference={"crash": "the answer is 43"})
    project.r2v("run_all", "desk", *ALONE)
    project.cluster.wait(lambda: project.attempts("preference")[-1].get("failure"))
    project.behave()
    project.r2v("resume", "desk_noisy")


def requeued(project: Any) -> None:
    """Run a stage that Slurm warns in the middle of its work."""
    finished(project)
    project.behave(preference={"steps": 20, "seconds": 0.1})
    project.r2v("run_all", "desk", *ALONE)
    project.cluster.wait(lambda: "step 3" in project.log("preference"))
    project.cluster.run("scancel", "--signal=USR2", "--batch", project.ids()["preference"])


DRILLS: dict[str, Callable[[Any], None]] = {"clean": clean, "healed": healed, "code": code, "requeued": requeued}


def sequence(project: Any) -> list[str]:
    """Return the calls that changed the queue, and the starts of each job."""
    calls = (project.folder / "calls").read_text().splitlines()
    names: dict[str, str] = {}
    count: Counter[str] = Counter()
    for call in calls:
        if submitted := re.match(r"sbatch (\d+) .*--comment=r2v:[^/]+/([\w-]*)(~heal)?/", call):
            job = "heal" if submitted[3] else submitted[2]
            count[job] += 1
            names[submitted[1]] = f"{job}#{count[job]}"
    lines = []
    for call in calls:
        plain = re.sub(r" ?(--)?comment=\S*", "", call)
        lines.append(re.sub(r"\b\d+\b", lambda match: names.get(match[0], match[0]), plain).rstrip())
    return lines + lives(project, names)


def lives(project: Any, names: dict[str, str]) -> list[str]:
    """Return one line for each start of each job: its name, Slurm's state, exit code and signal."""
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "REQUEUED", "PREEMPTED", "OUT_OF_MEMORY")

    def rows() -> list[list[str]] | None:
        ids = ",".join(names)
        table = project.cluster.run("sacct", "-nXPDj", ids, "-o", "JobID,State,ExitCode").stdout.splitlines()
        ended_rows = [line.replace(" by ", "|").split("|") for line in table]
        ended_ids = {row[0] for row in ended_rows if row[1] in ended}
        return ended_rows if ended_ids == set(names) and all(row[1] in ended for row in ended_rows) else None

    ended_rows = project.cluster.wait(rows, 60, every=1)
    order = list(names)
    return [f"{names[row[0]]}  {row[1]}  {row[-1]}" for row in sorted(ended_rows, key=lambda row: order.index(row[0]))]


def main() -> int:
    """Run the drills asked for and print the sequence of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1], help="default: this one")
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"of {', '.join(DRILLS)}; all by default")
    values = parser.parse_args()
    names = values.drills or list(DRILLS)
    if unknown := set(names) - set(DRILLS):
        parser.error(f"no drill {', '.join(sorted(unknown))}; there are {', '.join(DRILLS)}")
    sys.path.insert(0, str(values.checkout.resolve()))
    from tests.slurm.cluster import Cluster, lacking
    from tests.slurm.project import Project

    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            project = Project(cluster, Path(scratch) / name)
            recorded(project)
            DRILLS[name](project)
            project.drained(300)
            exit_code, _ = project.status()
            print(f"== {name}", *sequence(project), f"r2v status: exit code {exit_code}", sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
