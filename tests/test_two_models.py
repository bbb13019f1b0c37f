"""Two API models, neither of which is trained: from the first question to a bundle that routes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator, Lifecycle
from r2v.emulator.ledger import Bill
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.rollout.model_factory import engine
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many
from r2v.serve.bundle.manifest import read_bundle
from r2v.serve.bundle.play_bundle import routed_actor
from r2v.wire.exchange import TokenCounts
from tests import trust
from tests.llm.talk import environment
from tests.two_models import LARGE, SMALL

PAIR = (
    "teacher.provider=anthropic",
    f"teacher.model_name={LARGE}",
    "teacher.max_tokens=64",
    "teacher.mode=concurrent",
    "teacher.preflight=false",
    "policy.provider=openai",
    f"policy.model_name={SMALL}",
    "policy.api.max_tokens=64",
    "policy.api.actions=tools",
    "cost.cache_min_tokens=64",
    "router.rounds=0",
    "router.features=[uncertainty,progress,page,cases]",
    "data.num_episodes=6",
    "evaluation.conditions=[noisy]",
    "evaluation.gains_tasks=2",
)
RUN = ("run", "--config", str(trust.MICRO), "--overrides", *PAIR)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    monkeypatch.chdir(tmp_path)
    with Emulator(answer="tests.two_models:answer", lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        yield emulator


def billed(bill: Bill) -> float:
    """Return the USD of a request that was called directly."""
    fresh = bill.tokens_in - bill.cached_in - bill.written_in
    tokens = TokenCounts(
        fresh=fresh,
        cached=bill.cached_in,
        write_5m=bill.written_in - bill.written_1h,
        write_1h=bill.written_1h,
        output=bill.tokens_out,
    )
    return rate_of(bill.provider, bill.model).usd(tokens, batch=False)


def test_they_go_through_every_stage_to_a_bundle_and_the_books_are_the_bill(
    provider: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "teacher.max_usd=0.05"]) == 5, "the cap of both"
    stopped = sum(map(billed, provider.ledger().bills))
    assert 0.02 < stopped <= 0.05
    assert main([*RUN, "teacher.max_usd=20"]) == 0
    errors = capsys.readouterr().err
    assert f"{SMALL} is asked as it is; skipped are bc, verifier, candidates, preference, ablations;" in errors
    assert "the features uncertainty, verifier and the methods entropy_router" in errors
    bills, books = provider.ledger().bills, ProjectLedger(Path())
    assert sum(books.book(entry).usd for entry in books.entries()) == pytest.approx(sum(map(billed, bills)), abs=1e-9)
    assert {entry.payer for entry in books.entries()} == {"micro"} and {bill.model for bill in bills} == {LARGE, SMALL}
    assert max(Counter((bill.model, bill.turn[1:], bill.body_sha256) for bill in bills if bill.turn).values()) == 1, (
        "nothing was paid twice"
    )
    assert main([*RUN, "teacher.max_usd=20"]) == 0 and len(provider.ledger().bills) == len(bills)

    results = Path("results/micro")
    methods = json.loads((results / "setup.json").read_text())["methods"]
    assert methods == ["slm_only", "llm_only", "random_router", "oracle_router", "r2v"]
    evaluated = list(StoredEpisodes(results / "episodes/noisy/r2v.jsonl.zst"))
    tokens = [episode.tokens for episode in evaluated]
    assert all(record.slm_cached and record.slm_written and record.slm_in > record.slm_cached for record in tokens)
    router = json.loads(Path("outputs/micro/router/r2v.json").read_text())
    assert {name.partition(".")[0] for name in router["names"]} == {"progress", "page", "cases"}
    assert main(["verify-results", str(results)]) == 0
    assert f"{SMALL} was asked through an API" in capsys.readouterr().out

    assert main(["export", "bundle", "--config", str(results / "config.yaml")]) == 0
    bundle, config = read_bundle(Path("bundle")), load(str(trust.MICRO))
    assert bundle.manifest.weights == "none" and not bundle.policy.exists()
    benchmark = load_benchmark("desk", config.env.options)
    waves = engine(config.rollout, benchmark)
    actor = routed_actor(bundle, benchmark, waves, rollout=config.rollout)
    tasks = {task.task_id: task for task in benchmark.tasks()}
    specs = [
        EpisodeSpec(
            task=tasks[episode.metadata.task_id],
            seed=episode.metadata.seed,
            condition=episode.condition,
            perturbation_seed=episode.perturbation_seed,
            method="r2v",
            split=episode.metadata.split,
        )
        for episode in evaluated
    ]
    world = RolloutWorld(benchmark, config.perturbations, load(results / "config.yaml").inference)
    again = play_many(waves, world, specs, actor)
    assert [[step.action.raw_text for step in episode.steps] for episode in again] == [
        [step.action.raw_text for step in episode.steps] for episode in evaluated
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.provider=openai"], "policy.model_name names a model of policy.provider=openai, got tiny"),
        (["policy.api.effort=low"], "policy.api needs a provider"),
        (["policy.api.base_url=localhost"], "policy.api.base_url is a URL such as"),
        ([*PAIR, "policy.engine=vllm"], "policy.engine belongs to a policy that R2V trains"),
        ([*PAIR, "router.features=[uncertainty]"], "router.features must name a group that an API model gives"),
        ([*PAIR, "evaluation.methods=[entropy_router]"], "evaluation.methods must name one that an API model can play"),
        ([*PAIR, "hierarchical.enabled=true"], "hierarchical.enabled needs policy.provider=local"),
        (["policy.provider=scripted", "policy.model_name=a"], "policy.provider"),
    ],
)
def test_what_an_api_model_cannot_be_is_told_in_a_line(overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")) as raised:
        load(None, overrides)
    assert "\n" not in str(raised.value)


def test_errors_name_the_small_models_keys(provider: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train_policy", "--stage", "bc", "--config", str(trust.MICRO), "--overrides", *PAIR]) == 2
    assert "policy.provider=openai: gpt-5-nano is asked as it is" in capsys.readouterr().err
    for words, message in (
        (["policy.model_name=lab-7b"], "policy.model_name=lab-7b: no price"),
        (["policy.api.effort=max"], "policy.api.effort=max: not for gpt-5-nano"),
    ):
        assert main([*RUN, "teacher.max_usd=20", *words]) == 2
        assert message in capsys.readouterr().err
