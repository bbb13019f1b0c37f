"""The weights that ship with R2V are those that results name, by whatever name they are asked for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from r2v.config import PolicyConfig, identity, load
from r2v.policy.export import export
from r2v.policy.load import load_policy
from r2v.storage.weights import BUNDLED


def test_the_shipped_base_is_the_one_that_results_name() -> None:
    """An artifact names its base "tiny", not its weights: another base needs another name, or new versions of the
    stages that read it."""
    weights = hashlib.sha256((BUNDLED["tiny"] / "model.safetensors").read_bytes()).hexdigest()
    assert weights == "cbb687cf498758630063b4921bc86fe856316d87c1d29bd66f66237d18d452c1"


def test_the_shipped_toy_policy_is_the_one_that_results_name() -> None:
    """An artifact names it "toy", not its weights: another one needs another name, or new versions of the stages
    that read it."""
    weights = hashlib.sha256((BUNDLED["toy"] / "model.safetensors").read_bytes()).hexdigest()
    assert weights == "d15b93843ad922ae7d3a00bbb0ac88dc1a448c46b57ee835ffe7999448f37565"


def test_the_toy_policys_former_name_warns_and_is_the_same_artifact(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING", logger="r2v"):
        former = load(None, ["policy.model_name=pupil"])
    assert "policy.model_name=pupil is now called toy" in caplog.text
    assert former == load(None, ["policy.model_name=toy"])
    assert identity(former.policy)["model_name"] == "toy"


def test_adapters_that_name_the_toy_policy_by_its_former_name_load(tmp_path: Path) -> None:
    adapted = load_policy(PolicyConfig(model_name="toy", lora_r=2, device="cpu"), for_training=True)
    export(replace(adapted, name="pupil"), tmp_path / "final")
    assert json.loads((tmp_path / "final" / "adapter_config.json").read_text())["base_model_name_or_path"] == "pupil"
    loaded = load_policy(PolicyConfig(model_name=str(tmp_path / "final"), device="cpu"))
    assert loaded.model.num_parameters() == AutoModelForCausalLM.from_pretrained(BUNDLED["toy"]).num_parameters()
