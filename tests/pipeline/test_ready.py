"""Paid jobs need a cap; a server on this machine is only warned about."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.pipeline.jobs import job
from r2v.pipeline.ready import require_cap

PRICED = ["teacher.provider=openai", "teacher.model_name=my-model", "teacher.usd_in=1", "teacher.usd_out=4"]


@pytest.mark.parametrize("server", ["https://llm.example/v1", "http://gateway:4000/v1", "http://10.0.0.7/v1", "null"])
def test_a_priced_model_needs_a_cap(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    config = load(None, [*PRICED, f"teacher.base_url={server}"])
    with pytest.raises(
        UsageError, match=r"teacher.max_usd is not set, and collect would be billed: .*teacher.max_usd="
    ):
        require_cap(config, [job("collect")], tmp_path)


@pytest.mark.parametrize("server", ["http://127.0.0.1:8000/v1", "http://localhost:8000/v1", "http://[::1]:80/v1"])
def test_a_server_on_this_machine_is_warned_about(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_cap(load(None, [*PRICED, f"teacher.base_url={server}"]), [job("collect")], tmp_path)
    assert f"spending has no cap, teacher.max_usd is not set: endpoints={server}" in caplog.text
