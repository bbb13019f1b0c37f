"""The product in one table: which jobs there are, what each needs, and what order follows from that.

    run_here(config)                          # everything that is not up to date, in this process
    run_here(config, start="router")          # from one job on

A job is up to date when an artifact of its fingerprint is finished; its inputs' content is part of the
fingerprint, so a change travels exactly as far as it matters.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from r2v.config import Config, identity, load, to_yaml
from r2v.data.registry import DataRegistry
from r2v.envs.base import benchmark_class
from r2v.errors import EmptyResult, InputError, UsageError, nearest
from r2v.log import logger, to_wandb
from r2v.stages import Stage
from r2v.storage import artifact as artifacts
from r2v.storage.artifact import Artifact
from r2v.storage.paths import Places


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row of the table. `needs` are the jobs it waits for, `inputs` those whose artifacts it reads."""

    name: str
    stage: str
    """Dotted path module:attribute of the Stage."""
    command: tuple[str, ...]
    """The `r2v` command that runs this job by itself."""
    script: str
    """The file in scripts/slurm/ whose header says what the job asks of the cluster."""
    needs: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = ()
    """Inputs that are done whenever `needs` are, so that no waiting is owed to them."""
    asked_for: Callable[[Config], bool] = lambda config: True
    """Whether it is part of a configuration's chain."""
    rests_on_them: Callable[[Config], bool] = lambda config: True
    """Whether it needs anything of the chain at all."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the jobs whose artifacts this one reads."""
        return self.needs + self.also_reads

    def load(self) -> Stage:
        """The stage itself. Cheap: stage modules import nothing heavy at the top."""
        module, _, attribute = self.stage.partition(":")
        return cast(Stage, getattr(importlib.import_module(module), attribute))


JOBS = (
    Job(name="collect", stage="r2v.stages.collect:STAGE", script="01_collect.sh", command=("collect",)),
    Job(
        name="perturb",
        stage="r2v.stages.perturb:STAGE",
        script="02_perturb.sh",
        command=("perturb",),
        needs=("collect",),
    ),
    Job(
        name="bc",
        stage="r2v.stages.train_policy:BC",
        script="03_train_policy.sh",
        command=("train_policy", "--stage", "bc"),
        needs=("perturb",),
    ),
    Job(
        name="verifier",
        stage="r2v.stages.train_verifier:STAGE",
        script="04_train_verifier.sh",
        command=("train_verifier",),
        needs=("collect",),
    ),
    Job(
        name="candidates",
        stage="r2v.stages.generate_candidates:STAGE",
        script="05_generate_candidates.sh",
        command=("generate_candidates",),
        needs=("bc", "verifier"),
    ),
    Job(
        name="preference",
        stage="r2v.stages.train_policy:PREFERENCE",
        script="03_train_policy.sh",
        command=("train_policy", "--stage", "preference"),
        needs=("candidates",),
        also_reads=("bc",),
    ),
    Job(
        name="router_features",
        stage="r2v.stages.generate_router_features:STAGE",
        script="06_generate_router_features.sh",
        command=("generate_router_features",),
        needs=("preference",),
        also_reads=("verifier",),
    ),
    Job(
        name="router",
        stage="r2v.stages.train_router:STAGE",
        script="07_train_router.sh",
        command=("train_router",),
        needs=("router_features",),
        also_reads=("preference", "verifier"),
    ),
    Job(
        name="evaluate",
        stage="r2v.stages.evaluate:STAGE",
        script="08_evaluate.sh",
        command=("evaluate",),
        needs=("router",),
        also_reads=("bc", "preference", "verifier", "router_features"),
        rests_on_them=lambda config: config.evaluation.of_trained,
    ),
    Job(
        name="ablations",
        stage="r2v.experiments.ablations:STAGE",
        script="09_ablations.sh",
        command=("ablations",),
        needs=("router",),
    ),
    Job(
        name="hierarchical",
        stage="r2v.stages.train_hierarchical:STAGE",
        script="10_train_hierarchical.sh",
        command=("train_hierarchical",),
        needs=("bc",),
        asked_for=lambda config: config.hierarchical.enabled,
        rests_on_them=lambda config: config.hierarchical.start == "bc",
    ),
)
SERIES = "metrics.jsonl"
"""What a stage may leave of its course, a line per iteration."""
_BY_NAME = {job.name: job for job in JOBS}


def job(name: str) -> Job:
    """The job of this name. Raises UsageError with the nearest one."""
    if name not in _BY_NAME:
        raise UsageError(f"no job {name}; {nearest(name, _BY_NAME)}")
    return _BY_NAME[name]


def as_asked(config: Config, item: Job) -> Job:
    """The row as this configuration needs it: without what it then does not rest on."""
    return item if item.rests_on_them(config) else replace(item, needs=(), also_reads=())


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of one job: its artifact, and whether it had to be made."""

    job: str
    artifact: Artifact
    fresh: bool
    cpu_seconds: float = 0.0


def places_of(config: Config, root: Path = Path()) -> Places:
    """Where this configuration's outputs are published."""
    return Places(benchmark=config.env.benchmark, condition=config.data.condition, prefix=config.prefix, root=root)


def run_here(
    config: Config,
    *,
    start: str | None = None,
    without: Sequence[str] = (),
    force: Sequence[str] = (),
    root: Path = Path(),
) -> list[Done]:
    """Run the jobs of the table in this process, each at most once, skipping what is up to date.

    `start` takes the inputs of that job and later ones from their published places instead of making them, and
    `data.runs` takes the named runs instead of collecting.
    Raises InputError before anything runs where an input is neither made here nor published.
    """
    wanted, given = selection(config, start=start, without=without)
    made = {name: published(config, name, root) for name in given}
    results = []
    for item in wanted:
        inputs = {name: made[name] for name in item.inputs}
        done = run_job(config, item, inputs, force=item.name in force, root=root)
        made[item.name] = done.artifact
        results.append(done)
    return results


def selection(config: Config, *, start: str | None = None, without: Sequence[str] = ()) -> tuple[list[Job], list[str]]:
    """The jobs of the table from `start` on, those left out or not enabled aside, and the names of the inputs that
    none of them makes. Raises UsageError for a name that is no job's."""
    names = [item.name for item in JOBS]
    for name in (*without, *([start] if start else [])):
        job(name)
    first = names.index(start) if start else 0
    left_out = {
        *without,
        *(["collect"] if config.data.runs else []),
        *(item.name for item in JOBS if not item.asked_for(config)),
    }
    if start in left_out:
        raise UsageError(
            f"start from {start}: this configuration leaves it out (--without, data.runs, or "
            "hierarchical.enabled=false)"
        )
    wanted = [as_asked(config, item) for item in JOBS[first:] if item.name not in left_out]
    given = {name for item in wanted for name in item.inputs} - {item.name for item in wanted}
    return wanted, [name for name in names if name in given]


def run_job(
    config: Config,
    item: Job,
    inputs: Mapping[str, Artifact],
    *,
    force: bool = False,
    root: Path = Path(),
    publish_at: Path | None = None,
    publish: bool = True,
    quiet: bool = False,
) -> Done:
    """Make one job's artifact, or find it made, and publish it (at its usual place unless told otherwise): from
    its first moment on, so that the checkpoints of a killed attempt are found there. `quiet` says nothing of what
    was up to date."""
    stage, places = item.load(), places_of(config, root)
    sections, key = stage.sections(config), fingerprint_of(config, item, inputs)
    found = None if force else artifacts.find(places.artifacts, item.name, key)
    cpu, fresh = time.process_time(), found is None
    place = (publish_at or places.output(item.name)) if publish and item.name != "collect" else None
    if found is None:
        require_world(sections)
        logger.info("%-16s running", item.name)
        with (
            artifacts.build(
                places.artifacts, item.name, key, item.stage, to_yaml(config), inputs, root, again=force
            ) as work,
            _published_at(place, work.folder),
        ):
            stage.run(sections, work)
        found = artifacts.read(places.artifacts / f"{item.name}-{key}")
        to_wandb(
            config.logging.wandb, config.logging.project, item.name, found.summary, root / "logs", found.folder / SERIES
        )
    seconds = time.process_time() - cpu
    if place and not fresh:
        artifacts.publish(place, found.folder)
    if fresh or not quiet:
        logger.info("%-16s %s", item.name, f"done, {seconds:.1f} CPU-s" if fresh else "up to date")
    return Done(job=item.name, artifact=found, fresh=fresh, cpu_seconds=seconds)


def fingerprint_of(config: Config, item: Job, inputs: Mapping[str, Artifact]) -> str:
    """What names the artifact that this configuration and these inputs make."""
    stage = item.load()
    return artifacts.fingerprint(item.stage, stage.version, _fields(stage.sections(config)), inputs)


@contextmanager
def _published_at(place: Path | None, folder: Path) -> Iterator[None]:
    """Publish an attempt while it is made. What was there before comes back where the attempt cannot succeed."""
    if place is None:
        yield
        return
    before = place.resolve() if place.is_symlink() else folder
    artifacts.publish(place, folder)
    try:
        yield
    except (UsageError, InputError, EmptyResult):
        artifacts.publish(place, before)
        raise


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
    if name == "collect":
        return collected_runs(config, root)
    place = places_of(config, root).output(name)
    try:
        found = artifacts.read(place.resolve() if place.exists() else place)
    except InputError as error:
        raise InputError(f"needs {name}: {error}") from None
    _tell_differences(config, name, place, found)
    return found


def _tell_differences(config: Config, name: str, place: Path, found: Artifact) -> None:
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


def collected_runs(config: Config, root: Path = Path()) -> Artifact:
    """Collected runs as an input, their ids in the summary: those that `data.runs` names, the one that this very
    configuration collected, or else the benchmark's latest."""
    registry = DataRegistry(places_of(config, root).data)
    if not config.data.runs:
        own = artifacts.find(places_of(config, root).artifacts, "collect", fingerprint_of(config, job("collect"), {}))
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
        stage="r2v.stages.collect:STAGE",
        fingerprint=str(manifests[0].fingerprint),
        folder=Path(manifests[0].output_dir),
        files=files,
        summary={"run_ids": [manifest.run_id for manifest in manifests]},
    )


def _fields(sections: Any) -> dict[str, Any]:
    values = {item.name: getattr(sections, item.name) for item in dataclasses.fields(sections)}
    absent = {item.name for item in dataclasses.fields(sections) if item.metadata.get("if_given")}
    return {name: value for name, value in values.items() if value is not None or name not in absent}


def downstream(names: Iterable[str]) -> set[str]:
    """The jobs that depend on any of these, those included."""
    reached = set(names)
    for item in JOBS:
        if reached & set(item.inputs):
            reached.add(item.name)
    return reached
