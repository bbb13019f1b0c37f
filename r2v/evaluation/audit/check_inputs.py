"""Inputs of an evaluation, as attempt.meta.json describes them: models and data that are not in the folder.

Which there are, what made each and where it lay follows from the stages. Nothing is computed from the figures in their
summaries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import read_json
from r2v.evaluation.settings import EvaluateSettings
from r2v.storage.artifact import ATTEMPT
from r2v.storage.artifact_manifest import wrong_hashes
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
"""What an evaluation of trained models reads: job -> the stage that made it."""


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


def check_bases(attempt: AttemptRecord, settings: EvaluateSettings, findings: Findings) -> None:
    """Hold the hash of a bundled base to the one that this R2V brings; that of another is the folder's word."""
    name = settings.policy.model_name
    if odd := sorted(attempt.bases.keys() ^ ({"base"} if settings.reads_base else set())):
        missing = odd[0] not in attempt.bases
        findings.add(ATTEMPT, f"bases.{odd[0]} is {'missing' if missing else 'none of these methods'}")
    if wrong := wrong_hashes(attempt.bases, "bases"):
        findings.add(ATTEMPT, wrong)
    recorded = attempt.bases.get("base")
    if name in BUNDLED and recorded is not None and recorded != (here := base_sha256(name)):
        findings.add(ATTEMPT, f"bases.base is {recorded[:12]}, the bundled model {name} is {here[:12]}")


def input_artifacts(
    results: Path, attempt: AttemptRecord, settings: EvaluateSettings, findings: Findings
) -> dict[str, Artifact]:
    """The inputs as attempt.meta.json lists them."""
    if attempt.job != "evaluate":
        findings.add(ATTEMPT, f"job is {attempt.job}, of an evaluation it is evaluate")
    expected = set(INPUTS if settings.evaluation.of_trained else ())
    if not settings.router.reads_cases:
        expected.discard("case_support")
    if settings.policy.is_api:
        expected -= {"bc", "preference", "verifier"}
    for name in sorted(expected ^ attempt.inputs.keys()):
        findings.add(ATTEMPT, f"inputs.{name} is {'missing' if name in expected else 'none of these methods'}")
    for name, one in attempt.inputs.items():
        findings.extend(ATTEMPT, (f"inputs.{name}: {problem}" for problem in _problems(name, one)))
    return {
        name: Artifact(
            stage=one.stage, fingerprint=one.fingerprint, folder=results, files=one.files, summary=one.summary
        )
        for name, one in attempt.inputs.items()
    }


def _problems(name: str, one: InputRecord) -> Iterator[str]:
    if one.stage != INPUTS.get(name, one.stage):
        yield f"stage is {one.stage}, it is made by {INPUTS[name]}"
    if one.folder.rpartition("/")[2] != f"{name}-{one.fingerprint}":
        yield f"folder {one.folder} is not that of fingerprint {one.fingerprint}"
    if wrong := wrong_hashes(one.files, "files"):
        yield wrong
