"""The inputs of an evaluation as the audit knows them, and the version that made results."""

from __future__ import annotations

from dataclasses import fields

import pytest

from r2v.config import load
from r2v.evaluation.audit.check_inputs import INPUTS, fingerprint_problems
from r2v.evaluation.settings import EVALUATE_STAGE, EVALUATE_VERSION, EvaluateSettings
from r2v.pipeline.jobs import job
from r2v.storage.artifact import fingerprint


def test_the_audit_knows_the_inputs_and_what_makes_them() -> None:
    assert {name: job(name).stage for name in job("evaluate").inputs} == INPUTS


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
    problems = list(fingerprint_problems(made, settings, {}, {}))
    assert len(problems) == (said is not None) and (said or "") in "".join(problems)
