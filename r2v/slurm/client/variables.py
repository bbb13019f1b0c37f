"""Environment variables that reach Slurm's programs.

    of_program("squeue", os.environ)     # the allow-list `QUERY_VARIABLES`, and nothing else
    of_program("sbatch", os.environ)     # the user's environment without Slurm's own variables
    KEEP_SUBMITTED                       # a job's first line: what it submits then begins as it has begun itself

SQUEUE_PARTITION in a profile hides running jobs from squeue, and R2V would submit them again; SCANCEL_STATE spares jobs
from scancel; SLURM_MEM_PER_CPU of the job we are in bends the jobs that it submits. A key or a module of the user's
must reach his jobs all the same, and sbatch exports its own environment to them. The user's SBATCH_* variables become
directives first (`r2v.slurm.site.requests`). Every other program is given LC_ALL=C, because R2V reads its answers.
A job that submits another, itself anew for instance, passes on the environment it was submitted with: not LD_PRELOAD,
LD_LIBRARY_PATH or LOADEDMODULES as its own modules and env.sh left them, for the new job runs env.sh itself.
"""

from __future__ import annotations

import os
import shlex
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

SUBMISSION = "sbatch"
"""The program whose environment is that of the job."""
CONNECTION = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Slurm's own variables that every program is given: its configuration, the host that serves it, and the credential
where there is no munge."""
SLURMS_OWN = (
    *("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SUBMITIT_"),
    *("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_"),
)
"""What the names begin with that filter or format a program's answer, or that Slurm has set for the job we are in."""
SUBMITTED = "R2V_SUBMITTED"
"""The environment at the start of a job, as base64; no stage is given it."""
KEEP_SUBMITTED = (
    f'export {SUBMITTED}="$(env -0 | base64 -w0)"',
    f'[ "${{#{SUBMITTED}}}" -lt 130000 ] || {{ unset {SUBMITTED}; '
    "echo 'large environment: jobs that this one submits begin with what env.sh makes of it' >&2; }",
)
"""The lines of a job's script, before env.sh, that keep its environment. Linux allows a variable 128 KiB."""
QUERY_VARIABLES = (
    *CONNECTION,  # which controller is asked, and by whom
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"),  # the program, its libraries and its plugins
    *("HOME", "USER", "LOGNAME", "NSS_WRAPPER_*"),  # the user, in a container too
    *("KRB5*", "SSH_AUTH_SOCK"),  # credentials of a home folder on AFS or NFS, and of `submit_host`
    "TZ",  # times are printed in this process's zone
    "TMPDIR",  # wrappers that sites put before Slurm's programs write there
)
"""The allow-list of squeue, sacct, sinfo, scontrol, scancel and sacctmgr; `KRB5*` is every name that begins so."""


def of_program(program: str, values: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Slurm program, made from this process's own.

    >>> of_program("squeue", {"HOME": "/home/me", "OPENAI_API_KEY": "sk-1", "SQUEUE_STATES": "all"})
    {'HOME': '/home/me', 'LC_ALL': 'C'}
    >>> of_program("sbatch", {"HOME": "/home/me", "OPENAI_API_KEY": "sk-1", "SQUEUE_STATES": "all"})
    {'HOME': '/home/me', 'OPENAI_API_KEY': 'sk-1'}
    """
    if program == SUBMISSION:
        connection = {name: values[name] for name in CONNECTION if name in values}
        start = _submitted(values).items()
        return {name: value for name, value in start if not name.startswith(SLURMS_OWN)} | connection
    return {name: value for name, value in values.items() if _reaches_queries(name)} | {"LC_ALL": "C"}


def on_login_node(command: Sequence[str]) -> str:
    """The shell line that runs a Slurm command on a login node, whose profile may set Slurm's own variables too: all of
    them but `CONNECTION` are unset first."""
    named = f"sed -nE 's/^(({'|'.join(SLURMS_OWN)})[A-Za-z0-9_]*)=.*/\\1/p'"
    locale = [] if command[0] == SUBMISSION else ["export LC_ALL=C"]
    clear = "; ".join([f"unset $(env | {named} | grep -vxE '{'|'.join(CONNECTION)}')", *locale])
    return shlex.join(["exec", "sh", "-c", f'{clear}; exec "$@"', "sh", *command])


def kept_from_queries(names: Iterable[str]) -> list[str]:
    """Those of Slurm's own variables that no query is given."""
    return sorted(name for name in names if name.startswith(SLURMS_OWN) and not _reaches_queries(name))


def _submitted(values: Mapping[str, str]) -> Mapping[str, str]:
    """The environment with which the job that we are in was submitted; outside of one, this process's own."""
    if SUBMITTED not in values:
        return values
    entries = os.fsdecode(b64decode(values[SUBMITTED])).split("\0")[:-1]
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _reaches_queries(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in QUERY_VARIABLES)
