"""A shim in front of Slurm's commands: on a real cluster, the first calls of each fail as they do in the simulator.

    injected = shim(project, "lost", times=2)   # from now on, for the commands of R2V and those of its jobs
    injected()                                  # the programs that have met the fault by now

"error": not carried out, a socket error. "lost": carried out, a socket error. "hang": carried out, and no answer.
"late": a socket error, carried out half a minute later. "twice": carried out twice, as a message delivered again.
"full": a submission is refused at the limit on jobs; other commands get no answer. "killed": the caller dies after the
call was carried out. `sbatch --test-only` takes no fault: it submits nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from tests.slurm.project import Project

FAULTS = ("error", "lost", "hang", "late", "twice", "full", "killed")
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "scancel")
_SHIM = """#!/bin/bash
# A call takes a fault by moving its file away: of many at once, each gets another one or none.
fault=""
[[ {program} != sbatch || " $* " != *" --test-only "* ]] || exec {real} "$@"
for planned in {plan}/{program}-*; do
  mv "$planned" {plan}/done/ 2> /dev/null && fault={fault} && break
done
[ -n "$fault" ] || exec {real} "$@"
input=$(mktemp {plan}/input-XXXXXX)
[ {program} = sbatch ] && cat > "$input"
act() {{ {real} "$@" < "$input"; }}
refused() {{ echo "{program}: error: $1" >&2; exit 1; }}
failed() {{ refused "Socket timed out on send/recv operation"; }}
limit="Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"
case $fault in
  error) failed;;
  full) [ {program} = sbatch ] && refused "$limit"; failed;;
  killed) act "$@" > /dev/null 2>&1; kill -9 $PPID;;
  lost) act "$@" > /dev/null 2>&1; failed;;
  late) (sleep 30; act "$@") > /dev/null 2>&1 & failed;;
  twice) act "$@" > /dev/null 2>&1; act "$@"; exit $?;;
  hang) act "$@" > /dev/null 2>&1; exec sleep 3600;;
esac
"""


def shim(project: Project, fault: str, *, times: int) -> Callable[[], set[str]]:
    """Let the first calls of each command fail; return a function that lists the commands that have failed by then."""
    plan = project.folder / "plan"
    (plan / "done").mkdir(parents=True)
    (plan / "bin").mkdir()
    for program in PROGRAMS:
        real = shutil.which(program, path=project.env["PATH"])
        script = plan / "bin" / program
        script.write_text(_SHIM.format(plan=plan, program=program, real=real, fault=fault))
        script.chmod(0o755)
        for at in range(times):
            (plan / f"{program}-{at}").touch()
    project.env = {**project.env, "PATH": f"{plan / 'bin'}:{project.env['PATH']}"}
    return lambda: {path.name.partition("-")[0] for path in (plan / "done").iterdir()}
