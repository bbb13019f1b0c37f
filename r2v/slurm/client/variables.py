"""Environment variables passed to Slurm's programs.

    of_program("squeue", os.environ)     # only the allow-list `QUERY_VARIABLES`
    of_program("sbatch", os.environ)     # the user's environment without Slurm's own variables
    KEEP_SUBMITTED                       # first lines of a job's script: jobs that it submits start from its own start

SQUEUE_PARTITION in a profile hides running jobs from squeue, and R2V would submit them again; SCANCEL_STATE spares jobs
from scancel; SLURM_MEM_PER_CPU of the current job changes the jobs that it submits. The user's keys and modules must
reach the jobs all the same, through the environment that sbatch exports. The user's SBATCH_* variables become
directives first (`r2v.slurm.site.requests`). Other programs get LC_ALL=C, because R2V parses their output.
A job that submits another, for instance its own retry, passes on the environment it was submitted with, without the
changes of its modules and env.sh to LD_PRELOAD, LD_LIBRARY_PATH or LOADEDMODULES: the new job runs env.sh itself.
"""

from __future__ import annotations

import os
import shlex
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

SUBMISSION = "sbatch"
"""The program whose environment becomes the job's."""
CONNECTION = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
"""Slurm's own variables for every program: configuration, the host that serves it, the credential without munge."""
SLURMS_OWN = (
    *("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SUBMITIT_"),
    *("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_"),
)
"""Prefixes of variables that filter or format a program's answer, or that Slurm set for the current job."""
SUBMITTED = "R2V_SUBMITTED"
"""The environment at the start of a job, as base64; not passed to stages."""
KEEP_SUBMITTED = (
    f'export {SUBMITTED}="$(env -0 | base64 -w0)"',
    f'[ "${{#{SUBMITTED}}}" -lt 130000 ] || {{ unset {SUBMITTED}; '
    "echo 'large environment: jobs that this one submits begin with what env.sh makes of it' >&2; }",
)
"""Lines of a job's script, before env.sh, that save its environment. Linux limits a variable to 128 KiB."""
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
    """Return the environment of a Slurm program, made from this process's own.

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
    """Return the shell line that runs a Slurm command on a login node. Slurm's own variables except `CONNECTION` are
    unset first, since the node's profile may set them too."""
    named = f"sed -nE 's/^(({'|'.join(SLURMS_OWN)})[A-Za-z0-9_]*)=.*/\\1/p'"
    locale = [] if command[0] == SUBMISSION else ["export LC_ALL=C"]
    clear = "; ".join([f"unset $(env | {named} | grep -vxE '{'|'.join(CONNECTION)}')", *locale])
    return shlex.join(["exec", "sh", "-c", f'{clear}; exec "$@"', "sh", *command])


def kept_from_queries(names: Iterable[str]) -> list[str]:
    """Return the names of Slurm's own variables that are withheld from queries."""
    return sorted(name for name in names if name.startswith(SLURMS_OWN) and not _reaches_queries(name))


def _submitted(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with which the current job was submitted; outside a job, this process's own."""
    if SUBMITTED not in values:
        return values
    entries = os.fsdecode(b64decode(values[SUBMITTED])).split("\0")[:-1]
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _reaches_queries(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in QUERY_VARIABLES)
