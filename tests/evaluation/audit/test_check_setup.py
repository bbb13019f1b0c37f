"""A stranger's setup: what would take all memory or hours is refused before anything is made of it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from r2v.config import load
from r2v.envs.desk import Desk
from r2v.errors import InputError
from r2v.evaluation.audit.check_setup import check_fingerprint, planned_specs
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.settings import EVALUATE_STAGE, EVALUATE_VERSION, EvaluateSettings
from r2v.storage.artifact import fingerprint
from r2v.storage.artifact_manifest import ArtifactManifest


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("evaluation.bootstrap=1000000", r"config\.yaml: evaluation\.bootstrap is 1000000, allowed: up to \d+"),
        ("evaluation.seeds=[" + ",".join(map(str, range(5000))) + "]", r"config\.yaml: plans \d+ episodes and more"),
    ],
)
def test_a_plan_that_no_memory_holds_or_that_takes_hours_is_refused(key: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned_specs(EvaluateSettings.of(load(None, [key])), Desk())


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (EVALUATE_VERSION, None),
        (1, f"made by version 1 of evaluate, this R2V has version {EVALUATE_VERSION}: evaluate again"),
        (EVALUATE_VERSION + 1, "its configuration and inputs make"),
    ],
)
def test_results_of_an_earlier_version_are_told_from_altered_ones(version: int, said: str | None) -> None:
    settings = EvaluateSettings.of(load())
    sections = {item.name: getattr(settings, item.name) for item in fields(settings)}
    made = fingerprint(EVALUATE_STAGE, version, sections, {})
    findings = Findings()
    manifest = ArtifactManifest(stage=EVALUATE_STAGE, fingerprint=made, files={}, inputs={}, config_sha256="")
    check_fingerprint(manifest, {}, {}, settings, findings)
    assert bool(findings) == (said is not None) and (said or "") in str(findings)
