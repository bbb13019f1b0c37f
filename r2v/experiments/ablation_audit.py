"""Audit of an ablation study: its evaluations, their configurations, and the tables built from them.

Each evaluation in the study's folder is a whole results folder and is audited as one. It must match the configuration
of its row's side. The tables are then built again by the function that wrote them.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config, identity, load_recorded
from r2v.constraints import shown
from r2v.errors import InputError
from r2v.evaluation.audit.check_inputs import read_attempt
from r2v.evaluation.audit.check_setup import blamed, config_problems
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.folder import check_files, read_json, require_small_files
from r2v.evaluation.audit.rebuild_tables import differing
from r2v.evaluation.audit.verify import Verified, verify_results
from r2v.evaluation.settings import EvaluateSettings
from r2v.evaluation.tables.build import STRUCTURED
from r2v.evaluation.tables.files import with_manifest
from r2v.evaluation.tables.summary import ABLATIONS_FILE
from r2v.experiments.ablations import (
    CHANGES,
    EVALUATIONS,
    AblationsSettings,
    RowSides,
    base_name,
    changes_of,
    deciding_changes,
    sides_of,
    tables_of,
)
from r2v.pipeline.jobs import JOBS, job
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, read_artifact_manifest
from r2v.storage.integrity import CONFIGURATION, Artifact, content_files

_PLACE = re.compile(rf"{EVALUATIONS}/[0-9a-f]{{16}}")
_UNPROVEN = {
    "retrained_stages": "artifacts before an evaluation's own inputs are not in the folder",
    "the study's own fingerprint and inputs": "they describe artifacts that are not in the folder; no table depends on "
    "them",
}


@dataclass(frozen=True, kw_only=True)
class VerifiedStudy:
    """Scope of a passed audit."""

    num_rows: int
    evaluations: dict[str, Verified]
    """By path in the folder."""
    content_sha256: str
    """Hex SHA-256 over all content, as of a results folder."""

    def __str__(self) -> str:
        count = len(self.evaluations)
        episodes = sum(audit.num_episodes for audit in self.evaluations.values())
        unproven = {what: why for each in self.evaluations.values() for what, why in each.unproven.items()} | _UNPROVEN
        lines = [
            f"{self.num_rows} rows of {ABLATIONS_FILE} rest on {count} evaluation{'s' if count > 1 else ''} of "
            f"{episodes} episodes, all replayed with the recorded results; its tables are identical",
            f"content {self.content_sha256}",
            *(f"not proved: {what}: {why}" for what, why in unproven.items()),
        ]
        return "\n".join(lines)


def is_study(folder: Path) -> bool:
    """True for the folder of an ablation study."""
    return (folder / CHANGES).is_file()


def verify_ablations(folder: Path, *, trust: bool = False, whole: bool = False) -> VerifiedStudy:
    """Audit a study; `trust` and `whole` as in `verify_results`. Raise InputError, in one line, for any defect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown fields are a finding here, not a warning
        there, findings = require_small_files(folder), Findings()
        changes: dict[str, RowSides] = read_json(folder / CHANGES, dict[str, RowSides])
        paths = sorted({path for change in changes.values() for path in change.evaluations})
        if odd := [path for path in paths if not _PLACE.fullmatch(path)]:
            raise InputError(f"{folder / CHANGES}: {shown(odd[0])} is no path of an evaluation")
        verified = {path: verify_results(folder / path, trust=trust, whole=whole) for path in paths}
        cfg = _settings(folder, paths)
        findings.extend(CONFIGURATION, config_problems(folder / CONFIGURATION))
        if changes.keys() != set(cfg.rows) or changes != _planned(cfg, changes):
            raise InputError(f"{folder / CHANGES}: its rows or overrides are not those of {CONFIGURATION}")
        _check_sides(folder, cfg, changes, findings)
        retrained = _retrained(folder, changes, findings)
        _check_tables(folder, cfg, changes, retrained, findings)
        audited = {name for name in there for path in paths if name.startswith(f"{path}/")}
        tables = {name for name in there if name.startswith(f"{STRUCTURED}/")}
        content = content_files(folder)
        check_files(folder, there, {CHANGES} | tables | audited, content, findings, job("ablations").stage)
        digest = Artifact(stage="", fingerprint="", folder=folder, files=content).data_sha256
    if findings:
        raise InputError(f"{folder}: {findings}")
    return VerifiedStudy(num_rows=len(cfg.rows), evaluations=verified, content_sha256=digest)


def _settings(folder: Path, paths: list[str]) -> AblationsSettings:
    """Return the study's settings from its config.yaml, whose environment must be that of an audited evaluation."""
    path = folder / CONFIGURATION
    with blamed(path):
        config = load_recorded(path)
        worlds = [identity(load_recorded(folder / audited / CONFIGURATION).env) for audited in paths]
        if identity(config.env) not in worlds:  # checked first: unaudited options could make a huge environment
            raise InputError("env: no evaluation of the folder was played there")
        return AblationsSettings.of(config)


def _planned(cfg: AblationsSettings, changes: Mapping[str, RowSides]) -> dict[str, RowSides]:
    """Return the expected content of changes.json: the rows of the configuration with the recorded fingerprints."""
    of_bases = {base_name(cfg.whole, row): changes[row.name].base_evaluation for row in cfg.studied}
    paths = of_bases | {name: change.ablated_evaluation for name, change in changes.items()}
    return changes_of(cfg, {name: path.removeprefix(f"{EVALUATIONS}/") for name, path in paths.items()})


def _check_sides(folder: Path, cfg: AblationsSettings, changes: Mapping[str, RowSides], findings: Findings) -> None:
    """Compare each evaluation with the configuration of its row's side."""
    for name, sides in sides_of(cfg).items():
        for path, config in zip(changes[name].evaluations, sides, strict=True):
            if odd := _differing_jobs(folder / path, config):
                findings.add("evaluations", f"{name}: {path} was played by another {', '.join(odd)}")
            fingerprint = read_artifact_manifest(folder / path).fingerprint
            if not path.endswith(f"/{fingerprint}"):
                findings.add("evaluations", f"{path} is the evaluation {fingerprint}")


def _differing_jobs(evaluated: Path, config: Config) -> list[str]:
    """Return the jobs that decide the evaluation's episodes and have other settings in the configuration."""
    theirs = load_recorded(evaluated / CONFIGURATION)
    settings = [EvaluateSettings.of(each) for each in (theirs, config)]
    if read_attempt(evaluated, Findings()).left_out_verifier:
        settings = [evaluate.without_verifier for evaluate in settings]
    odd = {name for method in config.evaluation.methods for name in deciding_changes(theirs, config, method)}
    return sorted(odd | ({"evaluate"} if identity(settings[0]) != identity(settings[1]) else set()))


def _retrained(folder: Path, changes: Mapping[str, RowSides], findings: Findings) -> dict[str, list[str]]:
    """Return the recorded `retrained_stages` of each row; find rows that contradict their evaluations' inputs."""
    try:
        with (folder / STRUCTURED / ABLATIONS_FILE).open(newline="", encoding="utf-8") as file:
            stored = {row["name"]: row["retrained_stages"].split() for row in csv.DictReader(file)}
    except (OSError, ValueError, LookupError, AttributeError, csv.Error) as error:
        raise InputError(f"{folder / STRUCTURED / ABLATIONS_FILE}: {shown(error)}") from None
    jobs = {row.name for row in JOBS}
    retrained = {name: [job for job in stored.get(name, []) if job in jobs] for name in changes}
    for name, change in changes.items():
        base, ablated = (read_attempt(folder / path, findings).inputs for path in change.evaluations)
        changed = {job for job in ablated if job not in base or base[job].fingerprint != ablated[job].fingerprint}
        if changed != set(retrained[name]) & ablated.keys():
            findings.add("retrained_stages", f"{name}: the inputs of its evaluations differ by {sorted(changed)}")
    return retrained


def _check_tables(
    folder: Path,
    cfg: AblationsSettings,
    changes: Mapping[str, RowSides],
    retrained: Mapping[str, list[str]],
    findings: Findings,
) -> None:
    try:
        texts = with_manifest(tables_of(cfg, folder, changes, retrained))
        rows = read_artifact_manifest(folder).summary.get("rows")
    except Exception as error:  # untrusted values may break any function
        findings.add("tables", f"cannot be built: {error}")
        return
    findings.extend("tables", (f"{name} is not what the evaluations give" for name in differing(folder, texts)))
    if rows != len(cfg.rows):
        findings.add(ARTIFACT_MANIFEST, f"rows is {rows}, there are {len(cfg.rows)}")
