"""Audit of an ablation study: each evaluation that its tables rest on, whose configurations they are, and the tables.

    print(verify_ablations(Path("results/ablations/mrp")))      # InputError names each kind of lie with its example

An evaluation in the study's folder is a whole results folder and is audited as one. It belongs to the side of a row
whose configuration decides the same. The tables are then built again by the function that wrote them.
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
from r2v.experiments.ablation_reach import deciding_changes
from r2v.experiments.ablations import (
    CHANGES,
    EVALUATIONS,
    AblationsSettings,
    RowSides,
    base_name,
    changes_of,
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
    """By their place in the folder."""
    content_sha256: str
    """As that of a results folder."""

    def __str__(self) -> str:
        count = len(self.evaluations)
        episodes = sum(one.num_episodes for one in self.evaluations.values())
        unproven = {what: why for one in self.evaluations.values() for what, why in one.unproven.items()} | _UNPROVEN
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
    """Audit a study; `trust` and `whole` as for `verify_results`. Raises InputError in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown fields are a finding here, not a warning
        there, findings = require_small_files(folder), Findings()
        changes: dict[str, RowSides] = read_json(folder / CHANGES, dict[str, RowSides])
        places = sorted({place for change in changes.values() for place in change.evaluations})
        if odd := [place for place in places if not _PLACE.fullmatch(place)]:
            raise InputError(f"{folder / CHANGES}: {shown(odd[0])} is no place of an evaluation")
        verified = {place: verify_results(folder / place, trust=trust, whole=whole) for place in places}
        cfg = _settings(folder, places)
        findings.extend(CONFIGURATION, config_problems(folder / CONFIGURATION))
        if changes.keys() != set(cfg.rows) or changes != _planned(cfg, changes):
            raise InputError(f"{folder / CHANGES}: its rows or overrides are not those of {CONFIGURATION}")
        _check_sides(folder, cfg, changes, findings)
        retrained = _retrained(folder, changes, findings)
        _check_tables(folder, cfg, changes, retrained, findings)
        kept = {name for name in there for place in places if name.startswith(f"{place}/")}
        tables = {name for name in there if name.startswith(f"{STRUCTURED}/")}
        content = content_files(folder)
        check_files(folder, there, {CHANGES} | tables | kept, content, findings, job("ablations").stage)
        digest = Artifact(stage="", fingerprint="", folder=folder, files=content).data_sha256
    if findings:
        raise InputError(f"{folder}: {findings}")
    return VerifiedStudy(num_rows=len(cfg.rows), evaluations=verified, content_sha256=digest)


def _settings(folder: Path, places: list[str]) -> AblationsSettings:
    """The settings in config.yaml of a study that was played in the world of evaluations which were audited."""
    path = folder / CONFIGURATION
    with blamed(path):
        config = load_recorded(path)
        worlds = [identity(load_recorded(folder / place / CONFIGURATION).env) for place in places]
        if identity(config.env) not in worlds:  # before a world is made by options of whatever size
            raise InputError("env: no evaluation of the folder was played there")
        return AblationsSettings.of(config)


def _planned(cfg: AblationsSettings, changes: Mapping[str, RowSides]) -> dict[str, RowSides]:
    """The content of changes.json by the study's configuration, with the recorded fingerprints."""
    of_bases = {base_name(cfg.whole, row): changes[row.name].base_evaluation for row in cfg.studied}
    places = of_bases | {name: change.ablated_evaluation for name, change in changes.items()}
    return changes_of(cfg, {name: place.removeprefix(f"{EVALUATIONS}/") for name, place in places.items()})


def _check_sides(folder: Path, cfg: AblationsSettings, changes: Mapping[str, RowSides], findings: Findings) -> None:
    """Hold each evaluation to the configuration of the side that it is listed for."""
    for name, sides in sides_of(cfg).items():
        for place, config in zip(changes[name].evaluations, sides, strict=True):
            if odd := _differing_jobs(folder / place, config):
                findings.add("evaluations", f"{name}: {place} was played by another {', '.join(odd)}")
            made = read_artifact_manifest(folder / place).fingerprint
            if not place.endswith(f"/{made}"):
                findings.add("evaluations", f"{place} is the evaluation {made}")


def _differing_jobs(evaluated: Path, config: Config) -> list[str]:
    """Jobs whose settings decide the evaluation's episodes and are not those of the configuration."""
    theirs = load_recorded(evaluated / CONFIGURATION)
    settings = [EvaluateSettings.of(one) for one in (theirs, config)]
    if read_attempt(evaluated, Findings()).left_out_verifier:
        settings = [one.without_verifier for one in settings]
    odd = {name for method in config.evaluation.methods for name in deciding_changes(theirs, config, method)}
    return sorted(odd | ({"evaluate"} if identity(settings[0]) != identity(settings[1]) else set()))


def _retrained(folder: Path, changes: Mapping[str, RowSides], findings: Findings) -> dict[str, list[str]]:
    """Return the recorded `retrained_stages` of each row, held to the inputs of its two evaluations."""
    try:
        with (folder / STRUCTURED / ABLATIONS_FILE).open(newline="", encoding="utf-8") as file:
            stored = {row["name"]: row["retrained_stages"].split() for row in csv.DictReader(file)}
    except (OSError, ValueError, LookupError, AttributeError, csv.Error) as error:
        raise InputError(f"{folder / STRUCTURED / ABLATIONS_FILE}: {shown(error)}") from None
    known = {row.name for row in JOBS}
    retrained = {name: [job for job in stored.get(name, []) if job in known] for name in changes}
    for name, change in changes.items():
        base, ablated = (read_attempt(folder / place, findings).inputs for place in change.evaluations)
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
    except Exception as error:  # a stranger's values may break any function
        findings.add("tables", f"cannot be built: {error}")
        return
    findings.extend("tables", (f"{name} is not what the evaluations give" for name in differing(folder, texts)))
    if rows != len(cfg.rows):
        findings.add(ARTIFACT_MANIFEST, f"rows is {rows}, there are {len(cfg.rows)}")
