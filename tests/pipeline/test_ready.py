"""Paid jobs need a cap; a server of one's own is only warned about."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import load
from r2v.errors import UsageError
from r2v.pipeline.jobs import job
from r2v.pipeline.ready import require_cap

PRICED = ["teacher.provider=openai", "teacher.model_name=my-model", "teacher.usd_in=1", "teacher.usd_out=4"]


def test_a_priced_model_of_a_vendor_needs_a_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    config = load(None, [*PRICED, "teacher.base_url=https://llm.example/v1"])
    with pytest.raises(
        UsageError, match=r"teacher.max_usd is not set, and collect would be billed: .*teacher.max_usd="
    ):
        require_cap(config, [job("collect")], tmp_path)


@pytest.mark.parametrize("server", ["http://127.0.0.1:8000/v1", "http://gpu7:8000/v1", "http://10.0.0.7/v1"])
def test_a_server_of_ones_own_is_warned_about(server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    require_cap(load(None, [*PRICED, f"teacher.base_url={server}"]), [job("collect")], tmp_path)
    assert f"no cap on {server}: teacher.max_usd is not set" in caplog.text
