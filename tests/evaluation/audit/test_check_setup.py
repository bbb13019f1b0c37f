"""A stranger's setup: what would take all memory or hours is refused before anything is made of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from r2v.config import load
from r2v.errors import InputError
from r2v.evaluation.audit.check_setup import check_fingerprint, require_names
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.settings import EVALUATE_STAGE, EVALUATE_VERSION, EvaluateSettings
from r2v.evaluation.setup import Setup
from r2v.storage.artifact import fingerprint
from r2v.storage.artifact_manifest import ArtifactManifest


def setup(num_tasks: int, num_seeds: int, resamples: int = 10_000) -> Setup:
    return Setup(
        benchmark="chain",
        methods=("llm_only",),
        seeds=tuple(range(num_seeds)),
        tasks={"noisy": [f"t{number}" for number in range(num_tasks)]},
        resamples=resamples,
    )


def test_a_plan_that_no_memory_holds_is_refused() -> None:
    require_names(setup(5_000, 2_000), Path("setup.json"))
    with pytest.raises(InputError, match=r"setup\.json: plans 10002000 episodes, allowed: up to 10000000"):
        require_names(setup(5_001, 2_000), Path("setup.json"))


def test_resamples_that_would_take_hours_are_refused() -> None:
    require_names(setup(10, 1, (1 << 27) // 10), Path("setup.json"))
    for resamples in (0, (1 << 27) // 10 + 1):
        with pytest.raises(InputError, match=r"resamples is .*, allowed: 1 to 13421772"):
            require_names(setup(10, 1, resamples), Path("setup.json"))


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
