"""`r2v doctor` on WebArena: versions, language data, and each site of each set that variables name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from r2v.envs.webarena.home import webarena_home
from r2v.slurm.doctor.worlds import worlds
from tests.envs.webarena import listed
from tests.envs.webarena.stubs import Stub


@pytest.fixture(autouse=True)
def no_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("WA_"):
            monkeypatch.delenv(name)


def told() -> list[tuple[str, str]]:
    return [(finding.state, finding.what) for finding in worlds()]


def test_who_has_nothing_of_webarena_is_told_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert told() == []


def test_sites_are_asked_set_by_set_and_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    stub = Stub()
    monkeypatch.setenv("WA_MAP", stub.url("map"))
    monkeypatch.setenv("WA_B_MAP", "http://127.0.0.1:9")
    monkeypatch.setenv("WA_C_SHOPPING_ADMIN", "host:7780")
    findings = told()
    stub.close()
    assert ("bad", f"webarena: no child interpreter at {webarena_home()}; run `r2v webarena install`") in findings
    assert ("ok", f"webarena: map: {stub.url('map')} answers 200") in findings
    assert any(
        state == "bad" and what.startswith("webarena b: map: http://127.0.0.1:9 does") for state, what in findings
    )
    assert findings[-1] == ("bad", "WA_C_SHOPPING_ADMIN=host:7780: an address begins with http:// or https://")


def test_language_data_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    webarena_home().mkdir(parents=True)
    (webarena_home() / "versions.json").write_text('{"webarena-verified": "1.2.3"}')
    findings = told()
    assert findings[0] == ("ok", "webarena: webarena-verified 1.2.3")
    assert findings[1][0] == "warn" and findings[1][1].startswith("webarena: no punkt_tab; remove ")


@listed
def test_an_installation_tells_its_versions_and_that_its_language_data_is_there() -> None:
    states, what = zip(*told(), strict=True)
    assert states[:2] == ("ok", "ok") and "libwebarena 0.0.4, webarena-verified 1.2.3" in what[0]
    assert what[1].startswith("webarena: punkt_tab at ")
