"""The setup of a results folder, held to its configuration, its benchmark and the code that is here.

`world_of` makes the world that the episodes were played in: of R2V's own benchmarks only, unless the reader trusts the
folder, for a benchmark by dotted path is somebody's code. Everything that setup.json repeats from config.yaml is made
again from that file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from r2v.config import CONDITIONS, EnvConfig, InferenceConfig, PerturbationsConfig, load_recorded, section
from r2v.config.evaluation import IMPUTED
from r2v.config.methods import METHODS, ORACLE
from r2v.envs.base import BENCHMARKS, Benchmark, Judged, load_benchmark
from r2v.errors import InputError, R2VError
from r2v.evaluation.audit.findings import Findings, shown
from r2v.evaluation.settings import EVALUATE_STAGE, EVALUATE_VERSION, EvaluateSettings
from r2v.evaluation.setup import FRONTIER, GAINS, SETUP, Setup
from r2v.rollout.session import RolloutWorld
from r2v.serve.bundle.domain import benchmark_domain
from r2v.storage.artifact import fingerprint
from r2v.storage.artifact_manifest import ArtifactManifest
from r2v.storage.integrity import Artifact

_LIMITED = (ORACLE, FRONTIER, GAINS)
_POINT = re.compile(r"b[01]\.[0-9]{2}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LARGEST_OPTION = 100_000
"""A bundled benchmark makes its tasks in memory: nobody evaluates on more."""
_LONGEST_OPTION = 1000
"""Characters of an option that is text: names of tasks."""
_LARGEST_TABLE = 1 << 27
"""Most resamples x tasks: a figure of more takes seconds, and there are hundreds."""
_REMEDY = "evaluate again, or audit it with the R2V that made it"
_MOST_EPISODES = 10_000_000
"""Of an evaluation: a plan takes 80 bytes for each before the first is read."""
_LARGEST_SUMMARY = 4 << 20


def require_names(setup: Setup, where: Path) -> None:
    """Raises InputError for a method, condition or operating point that is none, before a path is made of it, and for
    numbers that would take hours."""
    planned = {point for methods in setup.frontier.values() for points in methods.values() for point in points}
    names = (
        ("methods", setup.methods, METHODS.keys()),
        ("tasks", setup.tasks, set(CONDITIONS)),
        ("frontier", setup.frontier, setup.tasks.keys()),
        *((f"frontier.{name}", methods, set(setup.methods)) for name, methods in setup.frontier.items()),
        ("frontier", planned, {point for point in planned if _POINT.fullmatch(point)}),
    )
    for key, given, allowed in names:
        if unknown := [name for name in given if name not in allowed]:
            raise InputError(f"{where}: {key}: {shown(unknown[0])} is not one of this evaluation's")
    counts = {"methods": setup.methods, "seeds": setup.seeds, "tasks": setup.tasks, **setup.tasks}
    for key, values in counts.items():
        if not values or len(set(values)) != len(values):
            raise InputError(f"{where}: {key} is empty or names something twice")
    largest = max(len(tasks) for tasks in setup.tasks.values())
    if not 1 <= setup.resamples <= _LARGEST_TABLE // largest:
        raise InputError(f"{where}: resamples is {setup.resamples}, allowed: 1 to {_LARGEST_TABLE // largest}")
    if odd := sorted(name for name, limit in setup.limits.items() if name not in _LIMITED or limit < 1):
        raise InputError(f"{where}: limits: {shown(odd[0])} is none, or below 1")
    require_size(setup.num_episodes, where)
    if not (0 < setup.level < 1 and 0 < setup.cvar_alpha <= 1 and setup.cost_ratio > 0):
        raise InputError(f"{where}: level, cvar_alpha or cost_ratio is out of range")


def require_size(num_episodes: int, where: Path) -> None:
    """Raises InputError for a plan of so many episodes that it alone would take all memory."""
    if num_episodes > _MOST_EPISODES:
        raise InputError(f"{where}: plans {num_episodes} episodes, allowed: up to {_MOST_EPISODES}")


def world_of(setup: Setup, *, trust: bool = False) -> RolloutWorld:
    """The world that an evaluation was played in. Raises InputError where it is not one of R2V's own and is not
    trusted, cannot be made, or has moved on."""
    try:
        env = section(EnvConfig, setup.world.get("env") or {})
        perturbations = section(PerturbationsConfig, setup.world.get("perturbations") or {})
        inference = section(InferenceConfig, setup.world.get("inference") or {})
    except R2VError as error:
        raise InputError(f"setup.json: world: {error}") from None
    if not trust:
        _require_own(env, perturbations)
    benchmark = _made(env)
    if benchmark.version != setup.benchmark_version:
        raise InputError(
            f"setup.json: these episodes were played on {benchmark.name} version {shown(setup.benchmark_version)}, "
            f"this R2V has version {benchmark.version}; check them with the R2V that made them"
        )
    return RolloutWorld(benchmark, perturbations, inference)


def _require_own(env: EnvConfig, perturbations: PerturbationsConfig) -> None:
    """Raises InputError for code that is not R2V's, and for options that no bundled benchmark needs."""
    foreign = [name for name in (env.benchmark, *perturbations.extra) if name not in BENCHMARKS]
    if foreign:
        raise InputError(
            f"setup.json names {shown(foreign[0])}, which is code and not one of R2V's benchmarks "
            f"({', '.join(BENCHMARKS)}); read that code first, then add --trust, and it is imported"
        )
    for key, value in env.options.items():
        small = (
            isinstance(value, str)
            and len(value) < _LONGEST_OPTION
            or isinstance(value, (int, float))
            and _in_range(value)
        )
        if not small and value is not None:
            raise InputError(f"setup.json: env.options.{shown(key)}: must be text or in [0, {_LARGEST_OPTION}]")


def _in_range(value: float) -> bool:
    return math.isfinite(value) and 0 <= value <= _LARGEST_OPTION


def judge_of(benchmark: Benchmark) -> str | None:
    """Who decided on outcomes beside the world, None where nobody did; from here on nobody is asked. Raises InputError
    where the tasks cannot be listed."""
    if not isinstance(benchmark, Judged):
        return None
    try:
        return benchmark.judge_by_record()
    except R2VError as error:
        raise InputError(f"setup.json: {error}") from None


def _made(env: EnvConfig) -> Benchmark:
    try:
        return load_benchmark(env.benchmark, env.options)
    except R2VError as error:
        raise InputError(f"setup.json: {error}") from None
    except Exception as error:  # options of a stranger may be anything, and so may what a benchmark says of them
        raise InputError(f"setup.json: env.options: {type(error).__name__}: {shown(error)}") from None


def settings_of(results: Path) -> EvaluateSettings:
    """The settings in config.yaml beside the results. Raises InputError where that is missing or is none."""
    path = results / "config.yaml"
    try:
        return EvaluateSettings.of(load_recorded(path))
    except R2VError as error:
        raise InputError(f"{path}: {shown(error)}") from None
    except Exception as error:  # the libraries that read YAML raise what they like for what is none
        raise InputError(f"{path}: not a configuration ({type(error).__name__}: {shown(error)})") from None


def check_setup(
    setup: Setup,
    settings: EvaluateSettings,
    benchmark: Benchmark,
    tasks: dict[str, list[str]],
    never_branched: list[str],
    findings: Findings,
) -> None:
    """Hold setup.json to config.yaml, and its tasks to those of the benchmark's split. Its choices of a score are held
    to calibration.json elsewhere."""
    expected = Setup(
        **settings.recorded(),
        benchmark_version=setup.benchmark_version,
        tasks=tasks,
        never_branched=never_branched,
        router_scores=setup.router_scores,
        choices=setup.choices,
        domain=benchmark_domain(benchmark) if setup.domain is not None else None,
        git_commit=setup.git_commit,
    )
    for item in fields(Setup):
        recorded, implied = getattr(setup, item.name), getattr(expected, item.name)
        if repr(recorded) != repr(implied):  # true is not 1, and order decides the order of tables
            findings.add(f"setup.json {item.name}", f"{recorded}, by config.yaml {implied}")
    if setup.git_commit is not None and not _COMMIT.fullmatch(setup.git_commit):
        findings.add("setup.json git_commit", f"{setup.git_commit} is no commit")


def check_fingerprint(
    manifest: ArtifactManifest,
    inputs: Mapping[str, Artifact],
    bases: Mapping[str, str],
    settings: EvaluateSettings,
    findings: Findings,
) -> None:
    """Hold the fingerprint and the hashes of the inputs to the configuration and to what the attempt lists."""
    for name in sorted(inputs.keys() | manifest.inputs.keys()):
        if name not in inputs or inputs[name].data_sha256 != manifest.inputs.get(name):
            findings.add("inputs", f"{name}: attempt.meta.json and artifact.json differ")
    sections = {item.name: getattr(settings, item.name) for item in fields(settings)} | dict(bases)
    earlier = {fingerprint(EVALUATE_STAGE, version, sections, inputs): version for version in range(EVALUATE_VERSION)}
    implied = fingerprint(EVALUATE_STAGE, EVALUATE_VERSION, sections, inputs)
    if manifest.fingerprint in earlier:
        findings.add(
            "fingerprint",
            f"made by version {earlier[manifest.fingerprint]} of evaluate, this R2V has version {EVALUATE_VERSION}: "
            + _REMEDY,
        )
    elif manifest.fingerprint == implied:
        return
    else:
        findings.add(
            "fingerprint", f"artifact.json says {manifest.fingerprint}, its configuration and inputs make {implied}"
        )


def require_executed(folder: Path) -> None:
    """Raises InputError for an imputed router's folder or bundle: there is nothing in it that could be verified."""
    if (folder / SETUP).exists():
        return
    for name, field in (("bundle.json", "labels"), ("artifact.json", "summary")):
        try:
            path = folder / name
            readable = path.is_file() and path.stat().st_size <= _LARGEST_SUMMARY
            told = json.loads(path.read_text())[field] if readable else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if told == IMPUTED or (isinstance(told, dict) and told.get("labels") == IMPUTED):
            raise InputError(
                f"{folder}: its labels are imputed, and no episode was played: there is nothing to replay. It can tell "
                "where the policy acts otherwise than its teacher was recorded to; it cannot tell whether the policy "
                "succeeds there, nor what the LLM would gain. `r2v export DIR --check` hashes a bundle's files"
            )


def imputed_problems(settings: EvaluateSettings) -> list[str]:
    """What is wrong with a table of executed results that says it routes by imputed labels."""
    if not settings.router.imputed:
        return []
    return ["router.label is imputed: of such a router nothing is executed, and it is evaluated in no table"]
