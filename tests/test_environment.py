"""Environment variables: what a stage is not given, and the proxy of a server."""

from __future__ import annotations

import doctest
import os
import random

import pytest

from r2v import environment
from r2v.environment import (
    OF_ACCELERATE,
    OF_LAUNCHERS,
    Proxy,
    is_loopback,
    not_for_stages,
    proxy_of,
    removal_text,
    spare_loopback,
    stage_environment,
    without_launchers,
)

OURS = ("HOME", "PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "WANDB_MODE", "NCCL_DEBUG")
"""Variables that every stage is given."""
DRAWN = 200


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_the_examples_hold() -> None:
    assert doctest.testmod(environment).failed == 0


@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_drawn_environment_loses_what_launchers_left_and_has_it_back_afterwards(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    left = {pattern.replace("*", draw.choice(["RANK", "SIZE", "X_1"])) for pattern in (*OF_LAUNCHERS, *OF_ACCELERATE)}
    there = draw.sample(sorted(left), draw.randrange(8))
    kept = draw.sample(OURS, draw.randrange(len(OURS)))
    for name in (*there, *kept):
        monkeypatch.setenv(name, str(draw.randrange(4)))
    before = dict(os.environ)
    with stage_environment() as removed:
        assert sorted(name for names in removed.values() for name in names) == sorted(set(there))
        assert set(kept) <= set(os.environ) and not set(there) & set(os.environ)
        assert not_for_stages(os.environ) == {}
        assert all(name in removal_text(removed) for name in there)
    assert dict(os.environ) == before


def test_an_error_in_a_stage_puts_the_variables_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(KeyError), stage_environment():
        raise KeyError
    assert os.environ["RANK"] == "3"


def test_ranks_keep_accelerates_variables_and_no_launchers() -> None:
    assert without_launchers({"RANK": "0", "PMI_SIZE": "2", "FSDP_X": "1", "HOME": "/h"}) == {
        "FSDP_X": "1",
        "HOME": "/h",
    }


@pytest.mark.parametrize(
    ("url", "yes"),
    [
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1", True),
        ("http://127.8.0.1:1/x", True),
        ("http://[::1]:80", True),
        ("http://node.localhost", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback(url: str, yes: bool) -> None:
    assert is_loopback(url) == yes


@pytest.mark.usefixtures("no_proxies")
def test_a_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of("https://api.openai.com/v1") is None
    monkeypatch.setenv("https_proxy", "http://me:sesame@squid:3128/")
    assert proxy_of("https://api.openai.com/v1") == Proxy(variable="https_proxy", address="squid:3128")
    assert proxy_of("http://lab/v1") is None
    monkeypatch.setenv("ALL_PROXY", "socks5://hop:1080")
    assert proxy_of("http://lab/v1") == Proxy(variable="ALL_PROXY", address="hop:1080")
    monkeypatch.setenv("no_proxy", "lab,.openai.com")
    assert proxy_of("http://lab/v1") is None and proxy_of("https://api.openai.com/v1") is None
    assert proxy_of("http://localhost:1/v1") is None


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("listed", ["", "lab", "localhost, lab"])
def test_loopback_is_excepted_from_proxies_beside_the_hosts_that_were(
    listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", listed)
    monkeypatch.setenv("NO_PROXY", listed)
    spare_loopback()
    assert os.environ["no_proxy"] == listed  # no proxy, no change
    monkeypatch.setenv("http_proxy", "http://squid:3128")
    spare_loopback()
    hosts = os.environ["no_proxy"].split(",")
    assert {"localhost", "127.0.0.1", "::1"} <= set(hosts) and len(hosts) == len(set(hosts))
    assert ("lab" in hosts) == ("lab" in listed)
    once = os.environ["no_proxy"]
    spare_loopback()
    assert os.environ["no_proxy"] == once
