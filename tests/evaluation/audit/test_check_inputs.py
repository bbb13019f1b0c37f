"""The inputs of an evaluation as the audit knows them are those of the table of stages."""

from __future__ import annotations

from r2v.evaluation.audit.check_inputs import INPUTS
from r2v.pipeline.jobs import job


def test_the_audit_knows_the_inputs_and_what_makes_them() -> None:
    assert {name: job(name).stage for name in job("evaluate").inputs} == INPUTS
