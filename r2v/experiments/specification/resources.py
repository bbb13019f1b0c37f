"""Resources of a run as one Slurm job: `resources:` of a specification over the header of scripts without a GPU.

    resources: {gres: "gpu:1", time: "04:00:00", mem: 32G}     # names of sbatch's options without dashes

Runs over a stage of the pipeline use the headers of their stages' scripts instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.config.yaml_text import Document, plain
from r2v.constraints import shown
from r2v.errors import UsageError

if TYPE_CHECKING:
    from r2v.slurm.site.headers import Resources


def resources_of(tree: Document) -> dict[str, str]:
    """Return the directives of a specification, possibly none. Raise UsageError with the line of a mistake."""
    from r2v.slurm.site.directives import check

    values = tree.value.get("resources", {})
    if not isinstance(values, dict):
        tree.refuse(f"must be sbatch's options with values, got {shown(str(values))}", "resources")
    if values and "command" not in tree.value and tree.value.get("mode") == "training":
        tree.refuse("is for a command or a simulation; a stage asks what the header of its script says", "resources")
    return {name: _directive(tree, name, value, check) for name, value in values.items()}


def _directive(tree: Document, name: str, value: Any, check: Any) -> str:
    """Return a directive's text, "" for a flag such as `exclusive: true`."""
    flag = plain(value)
    text = "" if flag is True else str(value)
    if isinstance(value, (dict, list)) or flag is False or flag is None:
        tree.refuse(f"must be a text or a number, got {shown(str(value))}", "resources", name)
    try:
        check(name, text, "")
    except UsageError as error:
        tree.refuse(str(error), "resources", name)
    return text


def job_resources(directives: Mapping[str, str]) -> Resources:
    """Return the resources of a run's job: those of jobs without a GPU, overridden by these directives."""
    from r2v.slurm.site import requests

    return requests.of_job(Path(), requests.CPU_SCRIPT, "").merged(directives)
