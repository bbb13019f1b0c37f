"""Requests: a job's resources from its header, the user's SBATCH_* variables and the configuration.

    of_job(root, "08_evaluate.sh", "evaluate", config)     # Resources, as they go to sbatch and into chain.json

An `SBATCH_*` variable overrides its directive in the header, as in sbatch itself (sbatch(1), input environment
variables); it is recorded with the attempt, so that healing requests the same from anywhere. A configuration with the
bundled models needs no GPU: its jobs take placement and size of `02_perturb.sh`, each with its own time limit
(`policy.device=cuda` requests the headers' GPUs).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from r2v.config import Config
from r2v.pipeline.jobs import job
from r2v.slurm.site import headers
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.write_headers import require_written
from r2v.storage.paths import SCRIPTS
from r2v.storage.weights import needs_gpu

CPU_SCRIPT = job("perturb").command.script
"""The script whose header gives placement and size of jobs without a GPU."""
PLACEMENT = ("partition", "account", "qos", "reservation", "clusters", "constraint", "licenses", "wckey")
"""Directives for a job's placement and accounting, not its size."""
_SIZE = ("cpus-per-task", "mem", "mem-per-cpu", "nodes", "ntasks")
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")
_SPELLED = {
    "timelimit": "time",
    "mem-per-node": "mem",
    "burst-buffer": "bb",
    "cpu-freq-req": "cpu-freq",
    "req-switch": "switches",
}
"""Option names of variables that are named differently."""
_FLAGS = ("exclusive", "ignore-pbs", "no-requeue", "overcommit", "requeue", "spread-job", "use-min-nodes")
_OURS = ("array-inx", "debug", "error", "input", "job-name", "open-mode", "output", "signal", "wait", "wait4switch")
"""Options that R2V sets itself, or that do not concern the job."""


def of_job(root: Path, script: str, name: str, config: Config | None = None) -> Resources:
    """Return the resources that a job requests. Raises UsageError and InputError as `headers.read` does."""
    request = replace(headers.read(root / SCRIPTS / script, name), sized_by=script)
    if config is not None and request.gpus and not needs_gpu(config.policy):
        placed, small = (*PLACEMENT, *_SIZE), headers.read(root / SCRIPTS / CPU_SCRIPT)
        own = {name: value for name, value in request.directives.items() if name not in (*_GPUS, *placed)}
        where = {name: value for name, value in small.directives.items() if name in placed}
        request = replace(request, directives={**where, **own}, node_gpus=0, sized_by=CPU_SCRIPT)
    return request.merged(from_environment(os.environ))


def sentinel(root: Path) -> dict[str, str]:
    """Return the directives of a sentinel: placement of jobs without a GPU, and the site profile's. Raises UsageError
    if the profile was edited and not written into the headers."""
    request = of_job(root, CPU_SCRIPT, "").directives
    inherited = (*PLACEMENT, "comment")
    return require_written(root).sentinel_directives({name: request[name] for name in inherited if name in request})


def from_environment(values: Mapping[str, str]) -> dict[str, str]:
    """Return the directives of a user's `SBATCH_*` variables, without those that Slurm itself sets in a job.

    >>> from_environment({"SBATCH_ACCOUNT": "lab7", "SBATCH_TIMELIMIT": "90", "SBATCH_REQUEUE": "1"})
    {'account': 'lab7', 'time': '90', 'requeue': ''}
    """
    given = {
        variable.removeprefix("SBATCH_").lower().replace("_", "-"): value
        for variable, value in values.items()
        if variable.startswith("SBATCH_") and "_BIND" not in variable
    }
    if clusters := values.get("SLURM_CLUSTERS"):
        given.setdefault("clusters", clusters)
    return {
        _SPELLED.get(name, name): "" if name in _FLAGS else value
        for name, value in given.items()
        if name not in _OURS and (value or name in _FLAGS)
    }
