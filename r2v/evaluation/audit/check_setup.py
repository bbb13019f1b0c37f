"""The configuration of a results folder, the settings and the world made of it here, and setup.json held to them.

Everything is made of config.yaml: the settings, the world that the episodes were played in, their plan, and the setup
that R2V would have written. The world is of R2V's own benchmarks only, unless the reader trusts the folder, for a
benchmark by dotted path is other people's code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from r2v.config import EnvConfig, PerturbationsConfig, load_recorded, to_yaml
from r2v.config.evaluation import IMPUTED
from r2v.config.yaml_text import plain, read
from r2v.constraints import shown
from r2v.envs.base import BENCHMARKS, Benchmark, load_benchmark
from r2v.errors import InputError, R2VError
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.settings import EvaluateSettings, never_branched
from r2v.evaluation.setup import SETUP, Setup
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.router.thresholds import ScoreChoice
from r2v.serve.bundle.domain import benchmark_domain
from r2v.storage.integrity import CONFIGURATION

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LARGEST_OPTION = 100_000
"""Tasks or the like: a bundled benchmark makes them in memory, and no evaluation needs more."""
_LONGEST_OPTION = 1000
"""Characters of an option that is text: names of tasks."""
_LARGEST_TABLE = 1 << 27
"""Most resamples x tasks: a figure of more takes seconds, and there are hundreds."""
_MOST_EPISODES = 10_000_000
"""Of an evaluation: a plan takes 80 bytes for each before the first is read."""
_LARGEST_SUMMARY = 4 << 20


@contextmanager
def blamed(name: str | Path) -> Iterator[None]:
    """Raise every error of the block as an InputError about this file of a stranger's."""
    try:
        yield
    except R2VError as error:
        raise InputError(f"{name}: {shown(error)}") from None
    except Exception as error:  # libraries and benchmarks raise anything for values that a user would never type
        raise InputError(f"{name}: not usable ({type(error).__name__}: {shown(error)})") from None


def settings_of(results: Path) -> EvaluateSettings:
    """The settings in config.yaml beside the results. Raises InputError where it is missing or not usable."""
    with blamed(results / CONFIGURATION):
        return EvaluateSettings.of(load_recorded(results / CONFIGURATION))


def config_problems(path: Path) -> Iterator[str]:
    """Yield the values that R2V would have written otherwise, of a config.yaml that `settings_of` has read.

    A reader of configurations is lenient where a person types: "yes" is true, "3" is a number. The configuration beside
    an artifact is resolved, so its values have their types. A key that is left out has its default.
    """
    texts = path.read_text(), to_yaml(load_recorded(path))
    given, written = (dict(_leaves(plain(read(text, path).value), "")) for text in texts)
    for key in sorted(given.keys() & written.keys()):
        if repr(given[key]) != repr(written[key]):
            yield f"{key} is {given[key]!r:.60}, R2V writes {written[key]!r:.60}"


def _leaves(value: Any, stem: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, f"{stem}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _leaves(below, f"{stem}[{index}]")
    else:
        yield stem, value


def world_of(settings: EvaluateSettings, *, trust: bool = False) -> RolloutWorld:
    """The world that an evaluation was played in. Raises InputError where it is not one of R2V's own and is not
    trusted, or cannot be made."""
    env, perturbations = settings.env, settings.perturbations
    if not trust:
        _require_own(env, perturbations)
    with blamed(f"{CONFIGURATION}: env"):
        return RolloutWorld(load_benchmark(env.benchmark, env.options), perturbations, settings.inference)


def _require_own(env: EnvConfig, perturbations: PerturbationsConfig) -> None:
    """Raises InputError for code that is not R2V's, and for options that no bundled benchmark needs."""
    foreign = [name for name in (env.benchmark, *perturbations.extra) if name not in BENCHMARKS]
    if foreign:
        raise InputError(
            f"config.yaml names {shown(foreign[0])}, which is code and not one of R2V's benchmarks "
            f"({', '.join(BENCHMARKS)}); read that code first, then add --trust, and it is imported"
        )
    for key, value in env.options.items():
        text, number = isinstance(value, str), isinstance(value, (int, float))  # true is a number, NaN in no range
        small = (text and len(value) < _LONGEST_OPTION) or (number and 0 <= value <= _LARGEST_OPTION)
        if not small and value is not None:
            raise InputError(f"config.yaml: env.options.{shown(key)}: must be text or in [0, {_LARGEST_OPTION}]")


def planned_specs(settings: EvaluateSettings, benchmark: Benchmark) -> dict[str, list[EpisodeSpec]]:
    """The episodes of each condition. Raises InputError where there are none, or so many that their plan alone would
    take all memory or their figures hours."""
    num_tasks = len(benchmark.tasks())
    planned = len(settings.evaluation.seeds) * num_tasks * len(settings.evaluation.played)
    if planned * (1 + len(settings.points)) > _MOST_EPISODES:
        raise InputError(f"config.yaml: plans {planned} episodes and more, allowed: up to {_MOST_EPISODES}")
    if (drawn := settings.evaluation.bootstrap) * num_tasks > _LARGEST_TABLE:
        raise InputError(f"config.yaml: evaluation.bootstrap is {drawn}, allowed: up to {_LARGEST_TABLE // num_tasks}")
    with blamed(CONFIGURATION):
        return {name: settings.specs(benchmark, name) for name in settings.selections}


def check_setup(
    stored: Setup,
    settings: EvaluateSettings,
    benchmark: Benchmark,
    specs: Mapping[str, Sequence[EpisodeSpec]],
    choices: dict[str, ScoreChoice],
    findings: Findings,
) -> Setup:
    """Hold setup.json to the setup that these settings and choices of a score make, and return that. Routers' scores
    are held to the gains elsewhere. Raises InputError for results of another version of the benchmark."""
    if benchmark.version != stored.benchmark_version:
        raise InputError(
            f"setup.json: these episodes were played on {benchmark.name} version {shown(stored.benchmark_version)}, "
            f"this R2V has version {benchmark.version}; check them with the R2V that made them"
        )
    expected = Setup(
        **settings.recorded(),
        benchmark_version=benchmark.version,
        tasks={name: list(dict.fromkeys(spec.task.task_id for spec in planned)) for name, planned in specs.items()},
        never_branched=never_branched(benchmark, specs),
        router_scores=stored.router_scores,
        choices=choices,
        domain=benchmark_domain(benchmark) if stored.domain is not None else None,
        git_commit=stored.git_commit,
    )
    for item in fields(Setup):
        recorded, implied = getattr(stored, item.name), getattr(expected, item.name)
        if repr(recorded) != repr(implied):  # true is not 1, and order decides the order of tables
            findings.add(f"{SETUP} {item.name}", f"{recorded}, by config.yaml {implied}")
    if stored.git_commit is not None and not _COMMIT.fullmatch(stored.git_commit):
        findings.add(f"{SETUP} git_commit", f"{stored.git_commit} is no commit")
    return expected


def require_executed(folder: Path) -> None:
    """Raises InputError for an imputed router's folder or bundle: there is nothing in it that could be verified."""
    if (folder / SETUP).exists():
        return
    for name, field in (("bundle.json", "labels"), ("artifact.json", "summary")):
        try:
            path = folder / name
            readable = path.is_file() and path.stat().st_size <= _LARGEST_SUMMARY
            value = json.loads(path.read_text())[field] if readable else None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue
        if value == IMPUTED or (isinstance(value, dict) and value.get("labels") == IMPUTED):
            raise InputError(
                f"{folder}: its labels are imputed, and no episode was played: there is nothing to replay. It can tell "
                "where the policy acts otherwise than its teacher was recorded to; it cannot tell whether the policy "
                "succeeds there, nor what the LLM would gain. `r2v export DIR --check` hashes a bundle's files"
            )
