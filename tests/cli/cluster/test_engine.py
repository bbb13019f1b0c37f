"""`r2v engine`: one line and an exit code if there is no engine; nothing is installed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.llm.engines.release import ENGINE_KEY_ENV
from tests.llm.engines.stub_server import stub_engine
from tests.served_models import base_model


def test_an_absent_engine_is_one_line_and_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "show", "--home", str(tmp_path / "none")]) == 5
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "r2v engine install" in said


def test_an_engine_that_cannot_be_imported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = stub_engine(tmp_path / "engine")
    module = home / "lib/python3.11/site-packages/vllm/entrypoints/openai/api_server"
    module.with_suffix(".py").write_text("import no")
    assert main(["engine", "show", "--home", str(home)]) == 5
    assert "cannot be imported" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["engine", "install", "--home", str(tmp_path)]) == 2
    assert "R2V did not mark it as its own" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


def serving(tmp_path: Path, *words: str) -> int:
    home, base = stub_engine(tmp_path / "engine"), base_model(tmp_path / "base")
    policy = [f"policy.model_name={base}", "policy.lora_r=8", f"policy.engine_venv={home}", "policy.device=cpu"]
    return main(["engine", "serve", *words, "--overrides", *policy])


def test_serving_others_needs_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINE_KEY_ENV, raising=False)
    assert serving(tmp_path, "--host", "0.0.0.0") == 2
    assert ENGINE_KEY_ENV in capsys.readouterr().err


def test_a_server_of_this_machine_gets_a_key_that_its_owner_alone_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINE_KEY_ENV, raising=False)
    monkeypatch.setenv("VLLM_STUB_TELLS", str(tmp_path / "told"))
    assert serving(tmp_path) == 0
    told, said = json.loads((tmp_path / "told").read_text()), capsys.readouterr().out
    assert len(told["key"]) >= 32 and told["files"]["key"] == [0o600, told["key"]]
    assert told["key"] not in " ".join(told["words"]) and told["key"] not in said
    assert said.count("\n") == 1 and f"export {ENGINE_KEY_ENV}=$(cat /" in said and "/key)" in said


def test_a_server_that_ends_hands_its_exit_code_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_STUB_REFUSES", "no kernel")
    assert serving(tmp_path) == 1
