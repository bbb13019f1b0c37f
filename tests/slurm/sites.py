"""Fake sites: refusals of a site's sbatch, as a submit plugin of the fake Slurm, each with its source.

The words are those of the page or issue, and the date is theirs. They were not checked on the real site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Asked = Mapping[str, str]
"""Options in force, by long name."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A refusal: its condition (of the options, and whether sbatch is run on a node), its words and its source."""

    refuses: Callable[[Asked, bool], bool]
    says: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site: its partitions as in the fake Slurm's partitions.json, the default first, and its rules."""

    partitions: Mapping[str, list[str]]
    rules: tuple[Rule, ...]


def gpus(asked: Asked) -> bool:
    """True if a job asks for a GPU, in any spelling."""
    return any(name in asked for name in ("gpus", "gpus-per-node", "gpus-per-task")) or "gpu" in asked.get("gres", "")


SITES = {
    "nersc": Site(
        partitions={"regular": []},
        rules=(
            Rule(
                refuses=lambda asked, node: "constraint" not in asked,
                says="sbatch: error: No architecture specified, cannot estimate job costs.\n"
                "sbatch: error: Batch job submission failed: Unspecified error",
                source="github.com/prisms-center/CASMcode/issues/238, 2022-05-24; "
                "github.com/NERSC/sfapi_client/issues/74, 2024-06-21",
            ),
            Rule(
                refuses=lambda asked, node: asked.get("kill-on-invalid-dep") == "yes",
                says="sbatch: error: (here a refusal; there runaway jobs, and users are asked to stop using the flag)",
                source="github.com/desihub/desispec/pull/2658, 2026-03-09",
            ),
        ),
    ),
    "tacc": Site(
        partitions={"normal": [], "gpu-a100": []},
        rules=(
            Rule(
                refuses=lambda asked, node: node,
                says="[TACC]: Job submission is not allowed from this host. Please submit\n"
                "[TACC]: through one of the available login resources.",
                source="github.com/hyeshik/tailseeker/issues/3, 2016-09-06 and 2023-10-06; "
                "github.com/adjtomo/seisflows/pull/127, 2022-08-22",
            ),
            Rule(
                refuses=lambda asked, node: "array" in asked,
                says="sbatch: error: (its words are not told: array jobs are not allowed)",
                source="github.com/adjtomo/seisflows/pull/127, 2022-08-22",
            ),
            Rule(
                refuses=lambda asked, node: "nodes" not in asked,
                says='--> Submission error: please define total node count with the "-N" option',
                source="github.com/TACC/launcher/issues/49, 2018-09-17",
            ),
            Rule(
                refuses=lambda asked, node: gpus(asked),
                says="sbatch: error: Batch job submission failed: Requested GRES option unsupported by configured "
                "SelectType plugin",
                source="github.com/radical-cybertools/radical.saga/issues/835, 2021-07-17",
            ),
        ),
    ),
    "pyxis": Site(
        partitions={"batch": ["gpu:8"], "cpu": []},
        rules=(
            Rule(
                refuses=lambda asked, node: asked.get("partition") == "batch" and not gpus(asked),
                says="sbatch: error: Cannot find GPU specification, you may not submit a job not requesting GPUs in a "
                "non-CPU partition, partition: batch\nsbatch: error: Batch job submission failed: Unspecified error",
                source="github.com/NVIDIA/exemplar-performance/issues/5, 2025-06-25; "
                "github.com/NVIDIA-NeMo/Evaluator/pull/915, 2026-04-17",
            ),
            Rule(
                refuses=lambda asked, node: "container-image" in asked,
                says="sbatch: unrecognized option '--container-image'\nTry \"sbatch --help\" for more information",
                source="github.com/Azure/az-hop/issues/1023, 2022-08-03: srun has it, sbatch has not",
            ),
        ),
    ),
    "gpu": Site(
        partitions={"cpu": [], "gpu": ["gpu:a100:4"]},
        rules=(
            Rule(
                refuses=lambda asked, node: asked.get("gres", "").startswith("gpu:") and asked["gres"].count(":") == 1,
                says="sbatch: error: You must always specify a type when requesting gpu GRES\n"
                "sbatch: error: Batch job submission failed: Unspecified error",
                source="github.com/facebookresearch/LaViLa/issues/42, 2024-11-03",
            ),
        ),
    ),
    "cpu": Site(
        partitions={"cpu": []},
        rules=(
            Rule(
                refuses=lambda asked, node: gpus(asked),
                says="sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
                source="github.com/NVIDIA/NeMo-Framework-Launcher/issues/72, 2023-06-08",
            ),
        ),
    ),
}


def refusal(site: str, words: list[str], *, node: bool) -> str | None:
    """Return the refusal of the site's sbatch for these options (--name=value each); None if it accepts them."""
    asked = {name[2:]: value for name, _, value in (word.partition("=") for word in words if word.startswith("--"))}
    return next((rule.says for rule in SITES[site].rules if rule.refuses(asked, node)), None)
