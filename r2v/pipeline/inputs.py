"""Inputs of a stage: the published artifacts, or collected runs, that its inputs are, and what names its result.

published(config, "bc")                       # what the pipeline last published
fingerprint_of(config, job("bc"), inputs)     # what this configuration and these inputs make
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2v.config import Config, identity, load
from r2v.data.registry import DataRegistry
from r2v.envs.base import benchmark_class
from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.pipeline.jobs import job
from r2v.pipeline.rows import Job
from r2v.storage import artifact as artifacts
from r2v.storage.artifact import Artifact
from r2v.storage.paths import Places


def places_of(config: Config, root: Path = Path()) -> Places:
    """Where this configuration's outputs are published."""
    return Places(benchmark=config.env.benchmark, condition=config.data.condition, prefix=config.prefix, root=root)


def place_of(config: Config, name: str, root: Path = Path()) -> Path:
    """Where this configuration's artifact of a job is published. Raises UsageError for a job that publishes none."""
    template = job(name).place
    if template is None:
        raise UsageError(f"{name} publishes no artifact: its runs are named in the registry (`r2v registry`)")
    return places_of(config, root).published(template)


def fingerprint_of(config: Config, row: Job, inputs: Mapping[str, Artifact]) -> str:
    """What names the artifact that this configuration and these inputs make."""
    stage = row.load()
    return artifacts.fingerprint(row.stage, stage.version, _fields(stage.sections(config)), inputs)


def require_world(sections: Any) -> None:
    """Raises UsageError, before anything is written, where a stage would play in a world or with a teacher that
    this version does not have."""
    if hasattr(sections, "env"):
        benchmark_class(sections.env.benchmark)
    if hasattr(sections, "teacher"):
        from r2v.rollout.model_factory import require_provider

        require_provider(sections.teacher, asked=getattr(sections, "asks_teacher", True))


def published(config: Config, name: str, root: Path = Path()) -> Artifact:
    """The artifact a single stage finds for an input: what the pipeline last published, and for collect the
    runs that `data.runs` names or else the latest done run. Raises InputError where there is none."""
    if job(name).place is None:
        return collected_runs(config, job(name), root)
    place = place_of(config, name, root)
    try:
        found = artifacts.read(place.resolve() if place.exists() else place)
    except InputError as error:
        raise InputError(f"needs {name}: {error}") from None
    _warn_of_differences(config, name, place, found)
    return found


def _warn_of_differences(config: Config, name: str, place: Path, found: Artifact) -> None:
    """Warn of the keys in which the configuration that made an artifact would have made another than this one."""
    sections = job(name).load().sections
    try:
        made, asked = (flat(identity(sections(one))) for one in (load(found.folder / "config.yaml"), config))
    except UsageError as error:
        logger.warning("  %s was made by another version of R2V: %s", place, error)
        return
    differing = sorted(key for key in made.keys() | asked.keys() if made.get(key) != asked.get(key))
    if differing:
        logger.warning(
            "  %s was made with other values of %s; to apply these, run its own command with them, or `r2v run`",
            place,
            ", ".join(differing),
        )


def flat(values: Mapping[str, Any], stem: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{stem}{key}.") if isinstance(value, dict) else {stem + key: value}
    return found


def collected_runs(config: Config, row: Job, root: Path = Path()) -> Artifact:
    """Collected runs as an input, their ids in the summary: those that `data.runs` names, the one that this very
    configuration collected, or else the benchmark's latest."""
    registry = DataRegistry(places_of(config, root).data)
    if not config.data.runs:
        own = artifacts.find(places_of(config, root).artifacts, row.name, fingerprint_of(config, row, {}))
        done = {manifest.run_id for manifest in registry.query(benchmark=config.env.benchmark, status="done")}
        if own is not None and done.issuperset(own.summary["run_ids"]):
            return own
    if config.data.runs:
        manifests = [registry.get(run_id) for run_id in config.data.runs]
    else:
        manifests = [registry.latest_run(config.env.benchmark)]
    for manifest in manifests:
        if manifest.status != "done":
            raise InputError(
                f"run {manifest.run_id} is {manifest.status}, not done; finish it with "
                f"`r2v collect --run-id {manifest.run_id}`"
            )
    files = {f"run-{index}": str(manifest.data_sha256) for index, manifest in enumerate(manifests)}
    return Artifact(
        stage=row.stage,
        fingerprint=str(manifests[0].fingerprint),
        folder=Path(manifests[0].output_dir),
        files=files,
        summary={"run_ids": [manifest.run_id for manifest in manifests]},
    )


def _fields(sections: Any) -> dict[str, Any]:
    values = {item.name: getattr(sections, item.name) for item in dataclasses.fields(sections)}
    absent = {item.name for item in dataclasses.fields(sections) if item.metadata.get("if_given")}
    return {name: value for name, value in values.items() if value is not None or name not in absent}
