"""A broken checkpoint that is named is refused in one line; the stage's own command would take an older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import Config, to_yaml
from r2v.storage.artifact import ATTEMPT
from r2v.storage.checkpoint import LATEST, point, seal
from r2v.storage.files import write_json


def attempt(folder: Path) -> Path:
    """Make an unfinished attempt of bc with one whole checkpoint."""
    checkpoint = folder / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    seal(checkpoint)
    point(folder, checkpoint)
    (folder / "config.yaml").write_text(to_yaml(Config()))
    write_json(folder / ATTEMPT, {"job": "bc", "inputs": {}})
    return checkpoint


@pytest.mark.parametrize("name", [LATEST, "checkpoint-10", "final", "checkpoint-11"])
def test_a_broken_checkpoint_that_is_named_is_one_line_and_code_3(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without hashes is no checkpoint, nor is a missing one."""
    checkpoint = attempt(tmp_path)
    (tmp_path / "final").mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"other weights")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["train_policy", "--resume", str(tmp_path / name)]) == 3
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"r2v: --resume {tmp_path / name}: ") and "\n" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before
