"""Inputs of a stage, published artifacts or collected runs, and the fingerprint of its result.

published(config, "bc")                       # the artifact that the pipeline last published
fingerprint_of(config, job("bc"), inputs)     # name of the artifact of this configuration and these inputs
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2v.config import PHASES, Config, HierarchicalConfig, PolicyConfig, identity, load_recorded
from r2v.config.engines import LOCAL
from r2v.data.manifest import RUN_MANIFEST, RunManifest
from r2v.data.registry import DataRegistry
from r2v.data.run import verify_run
from r2v.data.tools import tools_sha256
from r2v.envs.base import require_playable
from r2v.errors import InputError, MissingInput, UsageError
from r2v.llm.providers.keys import require_sendable
from r2v.log import logger
from r2v.memory.models import require_unquantized, values_of
from r2v.pipeline.jobs import job
from r2v.pipeline.rows import Job
from r2v.storage import artifact as artifacts
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, Damaged, json_sha256
from r2v.storage.integrity import Artifact
from r2v.storage.model_identity import CRITIC_MODEL, NotHashed, base_sha256
from r2v.storage.paths import Places

RUNS_FILE = "runs.jsonl"
"""File of a collection's artifact: a line for each run that it names."""


def places_of(config: Config, root: Path = Path()) -> Places:
    """Return the paths of this configuration's outputs."""
    return Places(benchmark=config.env.benchmark, condition=config.data.condition, prefix=config.prefix, root=root)


def place_of(config: Config, name: str, root: Path = Path()) -> Path:
    """Return the link at which a job's artifact is published. Raise UsageError for a job that publishes none."""
    template = job(name).place
    if template is None:
        raise UsageError(f"{name} publishes no artifact: its runs are named in the registry (`r2v registry`)")
    return places_of(config, root).published(template)


def fingerprint_of(config: Config, row: Job, inputs: Mapping[str, Artifact], *, hash_weights: bool = False) -> str:
    """Return the name of the artifact of this configuration and these inputs. `hash_weights`: read weights of base
    models that are not in the cache of hashes, as the process that runs the stage does; else raise NotHashed."""
    stage = row.load()
    sections = stage.sections(config)
    bases = bases_of(sections, hash_weights=hash_weights)
    return artifacts.fingerprint(row.stage, stage.version, _fields(sections) | bases, inputs)


def recipe_of(config: Config, row: Job, recipes: Mapping[str, str]) -> str:
    """Return the name of the artifact of this configuration and of inputs with these recipes; "" for unhashed bases."""
    if not all(recipes[name] for name in row.inputs):
        return ""
    stage = row.load()
    own = stage.sections(config)
    try:
        sections = {name: identity(section) for name, section in (_fields(own) | bases_of(own)).items()}
    except NotHashed:
        return ""
    return json_sha256([row.stage, stage.version, sections, {name: recipes[name] for name in row.inputs}])[:16]


def bases_of(sections: Any, *, hash_weights: bool = False) -> dict[str, str]:
    """Return the hashes of the base models of these settings, by their names in fingerprints. Raise NotHashed."""
    bases: dict[str, str] = {}
    if not getattr(sections, "reads_base", True):
        return bases
    for section in _fields(sections).values():
        policy = section.policy if isinstance(section, Config) else section
        if isinstance(policy, PolicyConfig) and not policy.is_api:
            bases["base"] = base_sha256(policy.model_name, policy.revision, hash_weights=hash_weights)
        if isinstance(section, HierarchicalConfig) and section.critic.published:
            critic = section.critic.model_name
            bases["critic_base"] = base_sha256(critic, hash_weights=hash_weights, key=CRITIC_MODEL)
    return bases


def require_possible(sections: Any) -> None:
    """Raise UsageError where a stage cannot run under these settings on any machine."""
    if hasattr(sections, "phase"):  # it trains weights
        sections.policy.require_trainable()
        sections.phase.require_optimizer()
    if hasattr(sections, "require_possible"):
        sections.require_possible()
    require_policy(sections)


def require_policy(sections: Any) -> None:
    """Raise UsageError where the policy of a stage cannot be served or loaded."""
    if hasattr(sections, "policy"):
        if sections.policy.is_api:
            return
        sections.policy.require_servable()
        require_loadable(sections.policy)


def require_loadable(policy: PolicyConfig) -> None:
    """Raise UsageError for a policy that is loaded here with quantized weights; an engine may serve such a model."""
    if policy.engine != LOCAL:
        return
    try:
        values = values_of(policy.model_name)
    except (InputError, RecursionError):  # RecursionError: adapters that name themselves as their base
        return  # it may still be downloaded or made; `r2v.policy.load` checks again
    require_unquantized(values, f"policy.model_name={policy.model_name}")


def require_chain(config: Config, rows: Sequence[Job]) -> None:
    """Raise UsageError where a job cannot run under these settings, or not on artifacts made under them before it."""
    names = {row.name for row in rows}
    for row in rows:
        sections = row.load().sections(config)
        require_possible(sections)
        if names & set(row.inputs) and hasattr(sections, "require_anew"):
            sections.require_anew()
        require_settings(config, row)
    require_sendable_keys(config, rows)


def require_sendable_keys(config: Config, rows: Sequence[Job]) -> None:
    """Raise UsageError where a job's key for the teacher may not be sent, before earlier jobs are paid for."""
    for row in rows:
        sections = row.load().sections(config)
        if asks_teacher(sections):
            require_sendable(sections.teacher.api_key_env)
        if hasattr(sections, "policy"):
            require_sendable(sections.policy.api.api_key_env)


def asks_teacher(sections: Any) -> bool:
    """True if a stage with these settings sends requests to the teacher."""
    return hasattr(sections, "teacher") and bool(getattr(sections, "asks_teacher", True))


def require_settings(config: Config, row: Job) -> None:
    """Raise UsageError where a job would train a model with settings that were not chosen for it."""
    from r2v.memory import profile_of_model

    if row.name in PHASES:
        profile_of_model.require_settings(config)


def require_world(sections: Any) -> None:
    """Raise UsageError where a stage cannot run under these settings, or its world or teacher is not available here."""
    require_possible(sections)
    if getattr(sections, "env", None) is not None and getattr(sections, "needs_world", True):
        require_playable(sections.env.benchmark, sections.env.options)
    if hasattr(sections, "teacher"):
        from r2v.llm.providers.teacher import POLICY_KEYS
        from r2v.rollout.model_factory import require_provider

        require_provider(sections.teacher, asked=getattr(sections, "asks_teacher", True))
        if hasattr(sections, "policy") and sections.policy.is_api:
            require_provider(sections.policy.as_endpoint(sections.teacher), keys=POLICY_KEYS)


def published(config: Config, name: str, root: Path = Path()) -> Artifact:
    """Return the input of a single stage: the artifact that the pipeline last published; for collect the runs of
    `data.runs`, else the latest done run. Raise InputError if there is none."""
    if job(name).place is None:
        return collected_runs(config, job(name), root)
    artifact = read_published(config, name, root)
    _warn_of_differences(config, name, place_of(config, name, root), artifact)
    return artifact


def read_published(config: Config, name: str, root: Path = Path()) -> Artifact:
    """Return the artifact that is published for a job, whichever settings made it. Raise MissingInput if there is none,
    InputError if it is damaged."""
    row, link = job(name), place_of(config, name, root)
    if link.is_symlink() and not link.exists():
        raise InputError(f"needs {name}: {link} leads to {link.readlink()}, which is gone; {remedy(row)}")
    try:
        artifact = artifacts.read(link.resolve() if link.exists() else link)
        if artifact.stage != row.stage:
            raise Damaged(artifact.folder, f"it is of {artifact.stage}, {row.stage} belongs at {link}")
    except Damaged as error:
        raise InputError(f"needs {name}: {error}; {remedy(row)}") from None
    except MissingInput as error:
        raise MissingInput(f"needs {name}: {error.problem}", row.argv) from None
    return artifact


def remedy(row: Job) -> str:
    """Return the command that makes a damaged artifact of this job again, in words."""
    return f"make it again: `{' '.join(('r2v', *row.argv))}` with its configuration, or `r2v run`"


def made_already(config: Config, row: Job, key: str, root: Path = Path()) -> Artifact | None:
    """Return the finished artifact of a job, every file hashed, also those of the runs that it names. Raise Damaged
    where a hash is wrong, InputError where a run that it names is gone."""
    artifact = artifacts.look(places_of(config, root).artifacts, row.name, key)
    if artifact is not None and artifact.stage != row.stage:
        raise Damaged(artifact.folder / ARTIFACT_MANIFEST, f"it is of {artifact.stage}, {row.stage} belongs there")
    return artifact if artifact is None or row.place is not None else _with_runs(artifact, DataRegistry(root / "data"))


def _with_runs(artifact: Artifact, registry: DataRegistry) -> Artifact:
    """Return the artifact of a `collect` stage with the trajectories of its runs among its files. Raise Damaged where a
    run is not as recorded, InputError where it is gone."""
    named = artifact.summary.get("run_ids")
    if not (isinstance(named, list) and named and all(isinstance(run_id, str) for run_id in named)):
        raise Damaged(artifact.folder / ARTIFACT_MANIFEST, f"its run_ids are {named!r}")
    runs = [_run(registry, run_id, artifact.folder) for run_id in named]
    lines = [json.loads(line) for line in artifact.file(RUNS_FILE).read_text().splitlines()]
    recorded = {line["run_id"]: line["data_sha256"] for line in lines}
    tools = {line["run_id"]: line.get("tools_sha256") for line in lines}
    for run in runs:
        manifest, listing = run.output_dir / RUN_MANIFEST, artifact.folder / RUNS_FILE
        if run.status != "done":
            raise Damaged(manifest, f"it says {run.status}, {listing} says done")
        verify_run(run)
        if (data := recorded.get(run.run_id)) != run.data_sha256:
            raise Damaged(manifest, f"its data_sha256 is {run.data_sha256!s:.12}, {listing} says {data!s:.12}")
        if (listed := tools.get(run.run_id)) != (own := _tools_sha256(run)):
            raise Damaged(manifest, f"its tools are {own!s:.12}, {listing} says {listed!s:.12}")
    _require_figures(artifact, runs)
    return replace(artifact, elsewhere=_trajectories(runs))


def _run(registry: DataRegistry, run_id: str, named_by: Path) -> RunManifest:
    """Return a run that a collection's artifact names. Raise InputError where it is gone or unreadable."""
    path = registry.runs / run_id / RUN_MANIFEST
    if not path.exists():
        raise InputError(
            f"{path}: missing, and {named_by} was made of it; put it back, or move {named_by} away to collect anew"
        )
    return registry.get(run_id)


def _require_figures(artifact: Artifact, runs: Sequence[RunManifest]) -> None:
    """Raise Damaged where the figures of the runs' manifests differ from those of their artifact."""
    figures = {
        "n_episodes": sum(run.n_episodes for run in runs),
        "n_success": sum(run.n_success for run in runs),
        "total_cost_usd": round(sum(run.total_cost_usd for run in runs), 6),
    }
    for name, now in figures.items():
        if (recorded := artifact.summary.get(name, now)) != now:
            own, path = runs[0].output_dir / RUN_MANIFEST, artifact.folder / ARTIFACT_MANIFEST
            raise Damaged(own, f"its {name} is {now}, {path} says {recorded}")


def _trajectories(runs: Sequence[RunManifest]) -> dict[str, str]:
    return {str(run.trajectories): str(run.data_sha256) for run in runs}


def _tools_sha256(run: RunManifest) -> str | None:
    return None if run.tools is None else tools_sha256(run.tools)


def _warn_of_differences(config: Config, name: str, link: Path, artifact: Artifact) -> None:
    """Warn of the configuration keys by which this configuration would make another artifact than the published one."""
    sections = job(name).load().sections
    try:
        before, now = (
            flat(identity(sections(whole))) for whole in (load_recorded(artifact.folder / "config.yaml"), config)
        )
    except UsageError as error:
        logger.warning("  artifact made by another version of R2V: path=%s error=%s", link, error)
        return
    differing = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if differing:
        logger.warning(
            "  artifact made with other settings: path=%s keys=%s; to apply these, run its own command or `r2v run`",
            link,
            ", ".join(differing),
        )


def flat(values: Mapping[str, Any], stem: str = "") -> dict[str, Any]:
    """Return nested values by dotted key."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        flattened |= flat(value, f"{stem}{key}.") if isinstance(value, dict) else {stem + key: value}
    return flattened


def collected_runs(config: Config, row: Job, root: Path = Path()) -> Artifact:
    """Return collected runs as an input, their ids in the summary: those of `data.runs`, the one that this
    configuration collected, or else the benchmark's latest."""
    registry = DataRegistry(places_of(config, root).data)
    if not config.data.runs and (own := _own_collection(config, row, registry, root)) is not None:
        return own
    if config.data.runs:
        manifests = [registry.get(run_id) for run_id in config.data.runs]
    else:
        manifests = registry.query(benchmark=config.env.benchmark, status="done")[-1:]
    if not manifests:
        problem = f"needs {row.name}: {registry.runs}: no done run of {config.env.benchmark}"
        raise MissingInput(problem, row.argv)
    for manifest in manifests:
        again = f"`r2v collect --run-id {manifest.run_id}`"
        if manifest.status != "done":
            raise InputError(f"run {manifest.run_id} is {manifest.status}, not done; finish it with {again}")
        try:
            verify_run(manifest)
        except Damaged as error:
            raise InputError(
                f"needs {row.name}: {error}; put it back, or play it again with {again} and the run's configuration "
                "(what a provider has answered is in its journal, and is not paid again)"
            ) from None
    files = {f"run-{index}": str(manifest.data_sha256) for index, manifest in enumerate(manifests)}
    files |= {
        f"tools-{index}": tools
        for index, manifest in enumerate(manifests)
        if (tools := _tools_sha256(manifest)) is not None
    }
    return Artifact(
        stage=row.stage,
        fingerprint=str(manifests[0].fingerprint),
        folder=Path(manifests[0].output_dir),
        files=files,
        summary={"run_ids": [manifest.run_id for manifest in manifests]},
        elsewhere=_trajectories(manifests),
        labels=True,
    )


def _own_collection(config: Config, row: Job, registry: DataRegistry, root: Path) -> Artifact | None:
    """Return the artifact of this configuration's own collection, or None if it is not done."""
    try:
        own = artifacts.look(places_of(config, root).artifacts, row.name, fingerprint_of(config, row, {}))
        named = own.summary.get("run_ids", []) if own is not None else []
        if own is None or any(_run(registry, run_id, own.folder).status != "done" for run_id in named):
            return None
        return _with_runs(own, registry)
    except Damaged as error:
        raise InputError(
            f"needs {row.name}: {error}; make it again: `r2v run` with its configuration (what was collected and what "
            "a provider has answered is used, and not paid again)"
        ) from None


def _fields(sections: Any) -> dict[str, Any]:
    fields = [item for item in dataclasses.fields(sections) if not item.metadata.get("runtime")]
    values = {item.name: getattr(sections, item.name) for item in fields}
    absent = {item.name for item in fields if item.metadata.get("if_given")}
    return {name: value for name, value in values.items() if value is not None or name not in absent}
