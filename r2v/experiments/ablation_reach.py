"""Reach of an ablation: the jobs through which a change affects the compared methods' episodes.

The graph of jobs decides which artifacts are made again. Fewer jobs affect a method's episodes: the verifier is an
input of every job that could use it, and most do not by default. A row without an affecting job is zero by
construction and measures nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from r2v.config import Config, identity
from r2v.config.methods import CLONE, METHODS, ROUTERS, Ablation
from r2v.extensions import is_dotted, may_import
from r2v.pipeline.graph import as_configured
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.rows import Job


def why_left_out(row: Ablation, base: Config, changed: Config) -> str | None:
    """Return the reason why a row's difference between `base` and `changed` is zero by construction, or None.

    Raise UsageError if the ablated side needs a capability that the teacher lacks. Missing packages are reported by the
    stage itself.
    """
    if not changed.data.runs:
        job("verifier").load().sections(changed).require_anew()
    if not row.overrides or row.base_method != row.ablated_method:
        return None  # the control, or two methods
    if deciding_changes(base, changed, row.ablated_method):
        return None
    return f"nothing that decides what {row.ablated_method} does is changed by {' '.join(row.overrides)}"


def deciding_changes(base: Config, changed: Config, method: str) -> list[str]:
    """Return the jobs with other settings in `changed` than in `base` that affect the episodes of `method` there."""
    decide = deciding_jobs(changed, method)
    return [row.name for row in JOBS if row.name in decide and _differ(_sections(base, row), _sections(changed, row))]


def deciding_jobs(config: Config, method: str) -> set[str]:
    """Return the jobs whose artifacts affect a method's episodes, directly or through others."""
    deciding = _read_by(config, method)
    for row in reversed(JOBS):
        if row.name in deciding:
            deciding |= _deciding_inputs(config, as_configured(config, row))
    return deciding


def _read_by(config: Config, method: str) -> set[str]:
    """Return the jobs whose artifacts a method reads as it plays."""
    from r2v.router.baselines import instruments

    if METHODS[method].pretrained_only:
        return set()
    jobs = {"bc" if method == CLONE else "preference"}
    if method in ROUTERS:  # an untrained one is given the cost of r2v
        jobs |= {"router"}
    asks = instruments(method, config.router.features).verifier if method in ROUTERS else method == "best_of_k"
    return jobs | {"verifier"} if asks else jobs


def _deciding_inputs(config: Config, row: Job) -> set[str]:
    """Return the inputs that affect a job's content: the verifier only if the job uses its scores."""
    chosen = config.preference
    if row.name == "preference" and not chosen.enabled:
        return {"bc"}
    by_scores = chosen.pair_mode != "outcome"
    asks = by_scores if row.name == "candidates" else "verifier" in config.router.features
    return set(row.inputs) if asks else set(row.inputs) - {"verifier"}


def _sections(config: Config, row: Job) -> Any:
    """Return a job's own settings, with the verifier's `auto` label source resolved."""
    sections = row.load().sections(config)
    return _labels_named(config, sections) if row.name == "verifier" else sections


def _differ(sections: Any, others: Any) -> bool:
    """True if two settings of a job have different content; equality is tried first, since identities are slow."""
    return bool(sections != others) and bool(identity(sections) != identity(others))


def _labels_named(config: Config, sections: Any) -> Any:
    from r2v.stages.train_verifier import label_source

    if sections.verifier.label_sources != ["auto"] or sections.verifier.mode == "llm_judge":
        return sections
    source = "outcome"
    if sections.teacher.provider == "scripted":
        source = label_source(sections, deterministic=_deterministic(config))
    return dataclasses.replace(sections, verifier=dataclasses.replace(sections.verifier, label_sources=[source]))


def _deterministic(config: Config) -> bool:
    """True if the benchmark's environments fork exactly: as declared, or as recorded if it is not imported here. An
    unrecorded benchmark has no artifact yet that the answer could concern."""
    from r2v.envs.base import load_benchmark
    from r2v.pipeline.plan.recorded import recorded

    if may_import() or not is_dotted(config.env.benchmark):
        return load_benchmark(config.env.benchmark, config.env.options).capabilities.deterministic
    counts = recorded(config)
    return counts is None or counts.deterministic
