"""Stub sites, one set per test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.envs.webarena.stubs import Stub


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    sites = Stub()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sites.variables().items():
            patch.setenv(name, value)
        yield sites
    sites.close()
