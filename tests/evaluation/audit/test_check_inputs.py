"""The inputs of an evaluation as the audit knows them are those of the table of stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import load
from r2v.data.tools import TOOLS_FILE, tools_file_sha256, write_tools
from r2v.envs.base import tools_of
from r2v.envs.desk import Desk
from r2v.evaluation.audit.check_inputs import INPUTS, check_tools
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.settings import EvaluateSettings
from r2v.pipeline.jobs import job
from r2v.policy.training_tools import recorded
from r2v.storage.files import content_sha256
from r2v.storage.integrity import Artifact


def test_the_audit_knows_the_inputs_and_what_makes_them() -> None:
    assert {name: job(name).stage for name in job("evaluate").inputs} == INPUTS


def checked(files: dict[str, str], tools: str = "auto") -> Findings:
    """The findings about tools in a folder whose bc holds these files."""
    settings = EvaluateSettings.of(load(None, []))
    settings = replace(settings, policy=replace(settings.policy, model_name="org/model", tools=tools))  # type: ignore[arg-type]
    bc = Artifact(stage="", fingerprint="", folder=Path(), files=files)
    findings = Findings()
    check_tools({"bc": bc}, settings, Desk(), findings)
    return findings


def test_tools_of_the_training_are_held_to_those_of_the_world(tmp_path: Path) -> None:
    own = recorded(tools_of(Desk()))
    write_tools(tmp_path / TOOLS_FILE, own)
    told = tools_file_sha256(own)
    assert told == content_sha256(tmp_path / TOOLS_FILE)
    same = checked({TOOLS_FILE: told})
    assert not same and not same.unproven
    changed = tools_file_sha256((replace(own[0], description="Another."), *own[1:]))
    reworded = checked({TOOLS_FILE: changed})
    assert not reworded and changed[:12] in reworded.unproven["the tools of the training"]
    assert "holds no tools.json" in str(checked({}))
    assert not checked({}, tools="none")


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_tools_is_part_of_what_is_told(order: int) -> None:
    own = recorded(tools_of(Desk()))
    assert (tools_file_sha256(own[::order]) == tools_file_sha256(own)) == (order == 1)
