"""The stub's key, for every test of the server."""

from __future__ import annotations

import pytest

KEY = "sk-marker-of-the-provider-0123456789"


@pytest.fixture(autouse=True)
def _stub_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_API_KEY", KEY)
    monkeypatch.delenv("R2V_SERVE_KEY", raising=False)
