"""Providers by name and by dotted path: a user's own one collects real episodes without a line in the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from r2v.config import load
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator
from r2v.errors import UsageError
from r2v.llm.providers.factory import PROVIDER_CLASSES, make_provider
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider import BatchProvider
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job

PAGE = Path(__file__).parents[3] / "docs" / "extending" / "provider.md"
SMALL = (
    "env.options.num_tasks=36",
    "env.options.num_heldout=0",
    "data.seeds=[1]",
    "data.num_episodes=3",
    "rollout.workers=1",
    "teacher.model_name=our/model-70b",
    "teacher.usd_in=0.6",
    "teacher.usd_out=2.4",
)


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the docs page's provider as a module outside the package; return its dotted path."""
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert code is not None
    (tmp_path / "my_gateway.py").write_text(code[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GATEWAY_API_KEY", "sk-gateway-0123456789")
    return "my_gateway:Gateway"


@pytest.mark.parametrize("mode", ["auto", "concurrent"])
def test_a_provider_in_one_file_outside_the_package_collects_episodes(mode: str, gateway: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with Emulator(answer="desk") as emulator:
        overrides = [f"teacher.provider={gateway}", f"teacher.base_url={emulator.openai_url}", f"teacher.mode={mode}"]
        overrides.append("teacher.preflight=false")
        run_job(load(None, [*SMALL, *overrides]), job("collect"), {}, root=root)
        bills = emulator.ledger().bills
    run = DataRegistry(root / "data").query()[-1]
    episodes = list(StoredEpisodes(run.trajectories))
    assert (run.status, run.provider, run.n_episodes) == ("done", gateway, 3)
    assert {bill.model for bill in bills} == {"our/model-70b"} and {bill.mode for bill in bills} == {"sync"}
    assert len(bills) == sum(len(episode.steps) for episode in episodes) > 0
    usd = sum(0.6 * bill.tokens_in + 2.4 * bill.tokens_out for bill in bills) / 1e6
    assert run.total_cost_usd == pytest.approx(usd, rel=1e-6)
    written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert b"sk-gateway" not in written


def test_batches_of_a_provider_without_them_are_refused(gateway: str, tmp_path: Path) -> None:
    overrides = [f"teacher.provider={gateway}", "teacher.mode=batch"]
    with pytest.raises(UsageError, match="teacher.mode=batch: gateway takes no batches"):
        run_job(load(None, [*SMALL, *overrides]), job("collect"), {}, root=tmp_path / "root")


@pytest.mark.parametrize("name", PROVIDER_CLASSES)
def test_the_bundled_providers_take_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "sk-lab")
    rate = rate_of(name, "a-model", 1.0, 2.0)
    assert isinstance(make_provider(name, rate, api_key_env="LAB_API_KEY"), BatchProvider)
    with pytest.raises(UsageError, match="NO_SUCH_API_KEY is not set"):
        make_provider(name, rate, api_key_env="NO_SUCH_API_KEY")


class Nothing:
    def __init__(self, rate: Rate, *, base_url: str | None, api_key_env: str | None) -> None:
        pass


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Gateway", "cannot import no_such_module"),
        ("my_gateway:Gatewai", "did you mean Gateway"),
        ("pathlib:Path", "teacher.provider=pathlib:Path"),
        (f"{__name__}:Nothing", "is no Provider: it lacks name, request_body, call, close"),
    ],
)
def test_what_is_no_provider_is_refused_in_one_line(spec: str, message: str, gateway: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        make_provider(spec, rate_of(spec, "m", 1.0, 1.0))
    assert "\n" not in str(raised.value)
