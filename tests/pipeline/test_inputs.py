"""Weights that are quantized already are refused by every command, before any training or payment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import PolicyConfig
from r2v.pipeline.inputs import require_loadable
from r2v.storage.weights import ADAPTERS, BUNDLED


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the config.json of a quantized model, and no weights."""
    monkeypatch.chdir(tmp_path)
    values = json.loads((BUNDLED["tiny"] / "config.json").read_text())
    (tmp_path / "model").mkdir()
    values["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "model" / "config.json").write_text(json.dumps(values))
    return tmp_path / "model"


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--model", "model"],
        ["plan", "--overrides", "policy.model_name=model"],
        ["run", "--dry-run", "--overrides", "policy.model_name=model"],
        ["run", "--overrides", "policy.model_name=model", "training.lr=1e-4"],
        ["run", "--overrides", "policy.model_name=adapted", "training.lr=1e-4"],
        ["train_hierarchical", "--overrides", "policy.model_name=model"],
    ],
    ids=" ".join,
)
def test_a_quantized_model_is_refused_with_its_method_and_nothing_is_written(
    words: list[str], quantized: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (quantized.parent / "adapted").mkdir()
    (quantized.parent / "adapted" / ADAPTERS).write_text(json.dumps({"base_model_name_or_path": str(quantized)}))
    before = sorted(quantized.parent.rglob("*"))
    assert main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "its config.json has a quantization_config (gptq)" in line and "policy.load_in_4bit=true" in line
    assert sorted(quantized.parent.rglob("*")) == before


def test_an_engine_may_serve_one_and_a_model_that_is_not_here_is_looked_at_when_it_is_loaded(quantized: Path) -> None:
    require_loadable(PolicyConfig(model_name=str(quantized), engine="http://node7:8000", lora_r=16))
    require_loadable(PolicyConfig(model_name="nobody/no-such-model"))
    shutil.rmtree(quantized)
    quantized.mkdir()
    (quantized / ADAPTERS).write_text(json.dumps({"base_model_name_or_path": str(quantized)}))
    require_loadable(PolicyConfig(model_name=str(quantized)))
