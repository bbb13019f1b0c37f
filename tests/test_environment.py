"""Environment variables: those withheld from a stage, and the proxy of a server."""

from __future__ import annotations

import doctest
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from r2v import environment
from r2v.environment import (
    OF_ACCELERATE,
    OF_LAUNCHERS,
    is_loopback,
    not_for_stages,
    proxy_of,
    removal_text,
    spare_loopback,
    stage_environment,
    without_launchers,
)

OURS = ("HOME", "PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "WANDB_MODE", "NCCL_DEBUG")
"""Variables that every stage gets."""
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
    inherited = draw.sample(OURS, draw.randrange(len(OURS)))
    for name in (*there, *inherited):
        monkeypatch.setenv(name, str(draw.randrange(4)))
    before = dict(os.environ)
    with stage_environment() as removed:
        assert sorted(name for names in removed.values() for name in names) == sorted(set(there))
        assert set(inherited) <= set(os.environ) and not set(there) & set(os.environ)
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
    assert proxy_of("https://api.openai.com/v1") == ""
    monkeypatch.setenv("https_proxy", "http://me:sesame@squid:3128/")
    assert proxy_of("https://api.openai.com/v1") == "squid:3128 of https_proxy"
    assert proxy_of("http://lab/v1") == ""
    monkeypatch.setenv("ALL_PROXY", "socks5://hop:1080")
    assert proxy_of("http://lab/v1") == "hop:1080 of ALL_PROXY"
    monkeypatch.setenv("no_proxy", "lab,.openai.com")
    assert proxy_of("http://lab/v1") == proxy_of("https://api.openai.com/v1") == ""
    assert proxy_of("http://localhost:1/v1") == ""


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


STAGES = ("collect", "perturb", "train_policy --stage bc")
SMALL = (
    *("prefix=micro", "env.options.num_tasks=60", "env.options.num_heldout=8", "data.num_episodes=6"),
    *("training.num_epochs=1", "training.bc.max_examples=24", "training.save_steps=4"),
)
LEFT = {
    **{pattern.replace("*", "RANK"): ("0", "1", "", "x") for pattern in (*OF_LAUNCHERS, *OF_ACCELERATE)},
    **dict.fromkeys(("ACCELERATE_MIXED_PRECISION", "ACCELERATE_TORCH_DEVICE"), ("bf16", "cuda", "meta")),
    **dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), ("http://127.0.0.1:9", "squid:3128", "nonsense")),
    **dict.fromkeys(("LANG", "LC_ALL", "LC_NUMERIC"), ("C", "POSIX", "de_DE.UTF-8", "tr_TR", "xx")),
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_RESTART_COUNT"), ("0", "4", "77")),
    **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME", "MPLCONFIGDIR"), ("/nowhere", "/proc", "")),
    **dict.fromkeys(("PYTHONHASHSEED", "COLUMNS", "LINES", "PYTHONOPTIMIZE"), ("0", "1")),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), ("", "0", "7", "none", "MIG-x")),
    **dict.fromkeys(("TZ", "NO_COLOR", "FORCE_COLOR", "TERM", "DEBUG", "CI"), ("1", "dumb", "Asia/Kathmandu")),
    **dict.fromkeys(("TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "WANDB_MODE"), ("true", "debug", "offline")),
}
"""Variables left by shells and launchers, with possible values."""


def small_stage(folder: Path, stage: str, left: dict[str, str]) -> tuple[int, str]:
    """Return exit code and errors of a stage in a process that has these variables besides the necessary ones."""
    needed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    root = str(Path(__file__).resolve().parents[1])
    clean = {**needed, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [*stage.split(), "--config", f"{root}/tests/micro.yaml", "--force", "--overrides", *SMALL]
    command = [sys.executable, "-m", "r2v", *words]
    done = subprocess.run(command, cwd=folder, env=clean | left, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def trained(folder: Path) -> dict[str, Any]:
    """Return identity and content of the small policy."""
    record = json.loads((folder / "outputs/micro/policy/bc/artifact.json").read_text())
    return {key: record[key] for key in ("fingerprint", "inputs", "files", "summary")}


@pytest.fixture(scope="module")
def small_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    for stage in STAGES:
        code, errors = small_stage(folder, stage, {})
        assert code == 0, errors
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(20))
def test_a_stage_in_a_drawn_environment_trains_the_same_policy_or_says_one_line(seed: int, small_policy: Path) -> None:
    draw, clean = random.Random(f"stage {seed}"), trained(small_policy)
    left = {name: draw.choice(LEFT[name]) for name in draw.sample(sorted(LEFT), draw.randrange(4, 16))}
    code, errors = small_stage(small_policy, STAGES[-1], left)
    if code == 0:
        assert trained(small_policy) == clean, left
    else:
        messages = [line for line in errors.splitlines() if line.startswith("r2v: ")]
        assert len(messages) == 1 and "a bug of R2V" not in errors, (left, errors)
