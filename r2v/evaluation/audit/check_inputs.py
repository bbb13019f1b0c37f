"""artifact.json and attempt.meta.json of an evaluation, held to its configuration, its episodes and each other.

The inputs, the stage that made each and its folder follow from the table of stages. Nothing is computed from the
figures in their summaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from r2v.data.schema import SchemaError, from_dict
from r2v.errors import InputError
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import EvaluationSummary, read_json
from r2v.evaluation.settings import EVALUATE_STAGE, EVALUATE_VERSION, EvaluateSettings
from r2v.storage.artifact import ATTEMPT, fingerprint
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, read_artifact_manifest, wrong_hashes
from r2v.storage.integrity import Artifact
from r2v.storage.model_identity import base_sha256
from r2v.storage.weights import BUNDLED

INPUTS = {
    "router": "r2v.stages.train_router:STAGE",
    "bc": "r2v.stages.train_policy:BC",
    "preference": "r2v.stages.train_policy:PREFERENCE",
    "verifier": "r2v.stages.train_verifier:STAGE",
    "router_features": "r2v.stages.generate_router_features:STAGE",
    "case_support": "r2v.stages.fit_case_support:STAGE",
}
"""Inputs of an evaluation of trained models: job -> the stage that made it."""


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """One input of the attempt, as attempt.meta.json describes it."""

    folder: str
    stage: str
    fingerprint: str
    files: dict[str, str]
    summary: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """attempt.meta.json: the job, the hashes of the models that it read, and its inputs."""

    job: str
    bases: dict[str, str] = field(default_factory=dict)
    """Hashes of the models that were read; empty where the policy plays nowhere."""
    inputs: dict[str, InputRecord] = field(default_factory=dict)

    @property
    def left_out_verifier(self) -> bool:
        """True if no verifier could be trained, so that no method reads one."""
        return "verifier" in self.inputs and self.inputs["verifier"].summary.get("left_out") is not None


def read_attempt(results: Path, findings: Findings) -> AttemptRecord:
    """attempt.meta.json; an empty record, with a finding, where that is damaged."""
    try:
        attempt: AttemptRecord = read_json(results / ATTEMPT, AttemptRecord)
    except InputError as error:
        findings.add(ATTEMPT, str(error))
        return AttemptRecord(job="evaluate")
    return attempt


def check_artifact(
    results: Path,
    settings: EvaluateSettings,
    attempt: AttemptRecord,
    summary: Mapping[str, object],
    findings: Findings,
) -> None:
    """Hold artifact.json and attempt.meta.json to the settings as they were `asked`, to each other, and the summary to
    these values."""
    try:
        manifest = read_artifact_manifest(results)
        from_dict(EvaluationSummary, manifest.summary)
    except (InputError, SchemaError) as error:
        findings.add(ARTIFACT_MANIFEST, str(error))
        return
    for name, value in summary.items():
        if (recorded := manifest.summary.get(name, 0)) != value:
            findings.add(ARTIFACT_MANIFEST, f"{name} is {recorded}, by its episodes {value}")
    findings.extend(ATTEMPT, _problems(attempt, settings))
    inputs = {
        name: Artifact(stage=record.stage, fingerprint=record.fingerprint, folder=results, files=record.files)
        for name, record in attempt.inputs.items()
    }
    for name in sorted(inputs.keys() | manifest.inputs.keys()):
        if name not in inputs or inputs[name].data_sha256 != manifest.inputs.get(name):
            findings.add("inputs", f"{name}: attempt.meta.json and artifact.json differ")
    findings.extend("fingerprint", fingerprint_problems(manifest.fingerprint, settings, attempt.bases, inputs))


def fingerprint_problems(
    recorded: str, settings: EvaluateSettings, bases: Mapping[str, str], inputs: Mapping[str, Artifact]
) -> Iterator[str]:
    """Yield why a fingerprint is not the one of these settings, base models and inputs."""
    sections = {item.name: getattr(settings, item.name) for item in fields(settings)} | dict(bases)
    versions = range(EVALUATE_VERSION + 1)
    *earlier, implied = (fingerprint(EVALUATE_STAGE, version, sections, inputs) for version in versions)
    if recorded in earlier:
        remedy = f"this R2V has version {EVALUATE_VERSION}: evaluate again, or audit it with the R2V that made it"
        yield f"made by version {earlier.index(recorded)} of evaluate, {remedy}"
    elif recorded != implied:
        yield f"artifact.json says {recorded}, its configuration and inputs make {implied}"


def _problems(attempt: AttemptRecord, settings: EvaluateSettings) -> Iterator[str]:
    """Yield how attempt.meta.json differs from the settings. Of base models only the hashes of bundled ones are known
    here."""
    if attempt.job != "evaluate":
        yield f"job is {attempt.job}, of an evaluation it is evaluate"
    bases, name = attempt.bases, settings.policy.model_name
    for odd in sorted(bases.keys() ^ ({"base"} if settings.reads_base else set())):
        yield f"bases.{odd} is {'none of these methods' if odd in bases else 'missing'}"
    if wrong := wrong_hashes(bases, "bases"):
        yield wrong
    if name in BUNDLED and "base" in bases and bases["base"] != (here := base_sha256(name)):
        yield f"bases.base is {bases['base'][:12]}, the bundled model {name} is {here[:12]}"
    expected = set(INPUTS if settings.evaluation.of_trained else ())
    expected -= {"bc", "preference", "verifier"} if settings.policy.is_api else set()
    expected -= set() if settings.router.reads_cases else {"case_support"}
    for odd in sorted(expected ^ attempt.inputs.keys()):
        yield f"inputs.{odd} is {'missing' if odd in expected else 'none of these methods'}"
    for job, record in attempt.inputs.items():
        if record.stage != INPUTS.get(job, record.stage):
            yield f"inputs.{job}: stage is {record.stage}, it is made by {INPUTS[job]}"
        if record.folder.rpartition("/")[2] != f"{job}-{record.fingerprint}":
            yield f"inputs.{job}: folder {record.folder} is not that of fingerprint {record.fingerprint}"
        if wrong := wrong_hashes(record.files, "files"):
            yield f"inputs.{job}: {wrong}"
