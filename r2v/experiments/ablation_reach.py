"""Reach of an ablation: whether a change can be seen in the episodes of the methods that are compared.

The graph of jobs says what is made again, by fingerprint. Fewer jobs decide what a method does: the verifier is an
input of every job that could ask it, and most ask nothing of it by default. A row of which no changed job decides
anything is a row of zeros by construction, and says nothing of the part that it names.
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
    """Why a row between these configurations of its two sides could only be one of zeros; None: it need not be. Raises
    UsageError where the ablated side asks of the teacher what it cannot do; what is not installed is told by who makes
    it."""
    if not changed.data.runs:
        job("verifier").load().sections(changed).require_anew()
    if not row.overrides or row.base_method != row.ablated_method:
        return None  # the control, or two methods
    if deciding_changes(base, changed, row.ablated_method):
        return None
    return f"nothing that decides what {row.ablated_method} does is changed by {' '.join(row.overrides)}"


def deciding_changes(base: Config, changed: Config, method: str) -> list[str]:
    """The jobs that have other settings in `changed` and decide what `method` does there."""
    decide = deciding_jobs(changed, method)
    return [row.name for row in JOBS if row.name in decide and _differ(_sections(base, row), _sections(changed, row))]


def deciding_jobs(config: Config, method: str) -> set[str]:
    """The jobs whose content decides a method's episodes."""
    found = _read_by(config, method)
    for row in reversed(JOBS):
        if row.name in found:
            found |= _deciding_inputs(config, as_configured(config, row))
    return found


def _read_by(config: Config, method: str) -> set[str]:
    """The jobs whose content a method plays with."""
    from r2v.router.baselines import instruments

    if METHODS[method].pretrained_only:
        return set()
    found = {"bc" if method == CLONE else "preference"}
    if method in ROUTERS:  # one without a trained model costs what r2v costs
        found |= {"router"}
    asks = instruments(method, config.router.features).verifier if method in ROUTERS else method == "best_of_k"
    return found | {"verifier"} if asks else found


def _deciding_inputs(config: Config, row: Job) -> set[str]:
    """The inputs of a job whose content decides its own: the verifier's only where its scores are used."""
    chosen = config.preference
    if row.name == "preference" and not chosen.enabled:
        return {"bc"}
    by_scores = chosen.pair_mode != "outcome"
    asks = by_scores if row.name == "candidates" else "verifier" in config.router.features
    return set(row.inputs) if asks else set(row.inputs) - {"verifier"}


def _sections(config: Config, row: Job) -> Any:
    """Return a job's own settings, with the label source of a verifier that `auto` comes to."""
    sections = row.load().sections(config)
    return _labels_named(config, sections) if row.name == "verifier" else sections


def _differ(sections: Any, others: Any) -> bool:
    """True if two settings of a job have different content. Equal settings need no identity, which is dear."""
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
    """True if the benchmark's worlds fork exactly: as it says itself, or as was recorded of one that is not imported
    here. One that nobody has recorded has made no artifact that the answer could concern."""
    from r2v.envs.base import load_benchmark
    from r2v.pipeline.plan.recorded import recorded

    if may_import() or not is_dotted(config.env.benchmark):
        return load_benchmark(config.env.benchmark, config.env.options).capabilities.deterministic
    counts = recorded(config)
    return counts is None or counts.deterministic
