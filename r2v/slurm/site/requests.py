"""Requests: what a job asks Slurm for, once the user's shell and the configuration have had their say.

    of_job(root, "08_evaluate.sh", "evaluate", config)     # Resources, as they go to sbatch and into chain.json

The header of the job's script comes first. An `SBATCH_*` variable that is set takes the place of its directive, as
sbatch itself has it (sbatch(1), input environment variables); it is written down with the attempt, so that healing asks
the same wherever it runs. A configuration that trains and plays the bundled models asks for no GPU: its jobs run
where `02_perturb.sh` does, in its size, each for its own time (`policy.device=cuda` asks for the headers' GPUs).
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
"""The script whose header says where jobs without a GPU run, and in which size."""
PLACEMENT = ("partition", "account", "qos", "reservation", "clusters", "constraint", "licenses", "wckey")
"""Directives that say where a job runs and who pays, not how large it is."""
_SIZE = ("cpus-per-task", "mem", "mem-per-cpu", "nodes", "ntasks")
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")
_SPELLED = {
    "timelimit": "time",
    "mem-per-node": "mem",
    "burst-buffer": "bb",
    "cpu-freq-req": "cpu-freq",
    "req-switch": "switches",
}
"""Variables whose option has another name."""
_FLAGS = ("exclusive", "ignore-pbs", "no-requeue", "overcommit", "requeue", "spread-job", "use-min-nodes")
_OURS = ("array-inx", "debug", "error", "input", "job-name", "open-mode", "output", "signal", "wait", "wait4switch")
"""What a job of a chain has from here, or what says nothing of a job."""


def of_job(root: Path, script: str, name: str, config: Config | None = None) -> Resources:
    """The resources that a job asks for. Raises UsageError and InputError as `headers.read` does."""
    asked = replace(headers.read(root / SCRIPTS / script, name), sized_by=script)
    if config is not None and asked.gpus and not needs_gpu(config.policy):
        asked = _on_cpus(asked, headers.read(root / SCRIPTS / CPU_SCRIPT))
    return asked.merged(from_environment(os.environ))


def sentinel(root: Path) -> dict[str, str]:
    """The directives of a sentinel: it runs where jobs without a GPU do, and as the site profile says. Raises
    UsageError where the profile was edited and not written into the headers."""
    asked = of_job(root, CPU_SCRIPT, "").directives
    kept = (*PLACEMENT, "comment")
    return require_written(root).sentinel_directives({name: asked[name] for name in kept if name in asked})


def from_environment(values: Mapping[str, str]) -> dict[str, str]:
    """The directives that a user's `SBATCH_*` variables give, those aside that Slurm itself sets in a job.

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


def _on_cpus(asked: Resources, small: Resources) -> Resources:
    kept = {name: value for name, value in asked.directives.items() if name not in (*_GPUS, *PLACEMENT, *_SIZE)}
    where = {name: value for name, value in small.directives.items() if name in (*PLACEMENT, *_SIZE)}
    return replace(asked, directives={**where, **kept}, node_gpus=0, sized_by=CPU_SCRIPT)
