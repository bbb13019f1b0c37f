"""The lines of the first seed document: its command, its batch table, its placement of the target network."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from r2v.cli.main import main
from r2v.config import Config, PolicyConfig, load
from r2v.hrl import ArcherAgent, DoubleCritic, optimize_batch_processing
from r2v.hrl.tasks.word_problems import word_problems
from tests.hrl.playing import save_model, settings
from tests.hrl.trainers import model_at
from tests.seeds.workspace import REPOSITORY, checkout, typed


def test_the_command_needs_no_argument(tmp_path: Path) -> None:
    """Placed, begun, and stopped when it has a checkpoint; a whole run takes minutes."""
    root = checkout(tmp_path)
    process = subprocess.Popen(
        **typed(root, "exec python scripts/run_memory_optimized.py"), stderr=subprocess.PIPE, text=True
    )
    latest, deadline = root / "outputs/hierarchical/desk_noisy/checkpoint-latest", time.monotonic() + 240
    while not latest.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 75 and "placement shared" in said and "micro-batch size" in said, said
    assert latest.exists() and (latest.parent / "metrics.jsonl").read_text().count("\n") >= 1


def test_the_line_for_gsm8k_starts_from_its_own_configuration_and_keeps_it(tmp_path: Path) -> None:
    """As a node runs it, with a model of the user's own; stopped after its first phase, for a whole run takes hours."""
    root = checkout(tmp_path)
    model_at(root / "small")
    rows = [
        {"question": one.text, "answer": f"Step by step.\n#### {one.answer}"} for one in word_problems(268, 0, "train")
    ]
    (root / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = (
        "exec bash scripts/slurm/10_train_hierarchical.sh gsm8k "
        "--overrides hierarchical.problems.path=gsm8k.jsonl policy.model_name=small"
    )
    process = subprocess.Popen(**typed(root, line), stderr=subprocess.PIPE, text=True)
    said = ""
    assert process.stderr is not None
    for text in process.stderr:
        said += text
        if "placement shared" in text:
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75 and "answers of at most 16 tokens, hints of 16" in said, said
    [work] = (root / "outputs/hierarchical").glob("*/config.yaml")
    config = load(work)
    assert (config.hierarchical.problems.held_out, config.hierarchical.lr_warmup) == (200, 5)
    assert config.policy.model_name == "small" and config.policy.max_seq_len == 1024


def test_the_first_configuration_is_words_under_another_name() -> None:
    alias, words = (load(REPOSITORY / "configs" / name) for name in ("hierarchical.yaml", "hierarchical/words.yaml"))
    assert alias == words


@pytest.mark.parametrize("name", ["gsm8k", "math", "llama-3b-roberta"])
def test_the_other_configurations_are_planned_for_one_card(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = REPOSITORY / f"configs/hierarchical/{name}.yaml"
    assert main(["plan", "--stage", "hierarchical", "--config", str(path), "--gpu", "44.53GiB"]) == 0
    assert "fits" in capsys.readouterr().out


def test_the_batch_table() -> None:
    assert [optimize_batch_processing(size) for size in (44.53, 40, 20)] == [
        {"base_batch": 16, "critic_batch": 32, "micro_batch": 8},
        {"base_batch": 8, "critic_batch": 16, "micro_batch": 4},
        {"base_batch": 4, "critic_batch": 8, "micro_batch": 2},
    ]


def test_the_names() -> None:
    assert ArcherAgent.__module__.startswith("r2v.hrl") and DoubleCritic.__module__ == "r2v.hrl.algorithm.critic"


class SeedAgent(ArcherAgent):
    """An agent with the seed document's own statement in a method of its own."""

    def offload_target(self, cpu_device: torch.device, *rest: Any) -> None:
        self.target_critic = DoubleCritic(cpu_device, *rest)  # CPU placement


@pytest.fixture
def agent(tmp_path: Path) -> SeedAgent:
    policy = PolicyConfig(model_name=str(save_model(tmp_path / "model")), lora_r=4, device="cpu")
    return SeedAgent(Config(policy=policy, hierarchical=settings()))


def shape(critic: DoubleCritic) -> tuple[nn.Module, int, tuple[int, ...]]:
    """Backbone, state size and hidden widths of a critic, as its constructor takes them after the device."""
    layers = [layer for layer in critic.floor if isinstance(layer, nn.Linear)]
    return copy.deepcopy(critic.backbone), layers[0].in_features, tuple(layer.out_features for layer in layers[:-1])


def test_the_target_critic_is_placed_on_the_cpu_by_the_seeds_statement(agent: SeedAgent) -> None:
    before = agent.target_critic
    agent.offload_target(torch.device("cpu"), *shape(agent.critic))
    assert agent.target_critic is not before and agent.roles.target.critic is agent.target_critic
    assert agent.roles.device("target") == "cpu"
    for target, online in zip(agent.target_critic.parameters(), agent.critic.parameters(), strict=True):
        assert target.device.type == "cpu" and not target.requires_grad and torch.equal(target, online)


def test_the_memory_efficient_target_update_is_the_seeds_formula_in_chunks(agent: SeedAgent) -> None:
    """target.data <- target.data * (1 - tau) + source * tau, whatever the chunk; training calls the same code."""
    with torch.no_grad():
        for tensor in agent.critic.parameters():
            tensor += torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)
    tau, sources = 0.25, [tensor.clone() for tensor in agent.critic.parameters()]
    wanted = [
        target.data * (1 - tau) + source * tau
        for target, source in zip(agent.target_critic.parameters(), sources, strict=True)
    ]
    agent.roles.target.chunk = 10
    agent._memory_efficient_target_update(tau)
    for target, expected in zip(agent.target_critic.parameters(), wanted, strict=True):
        torch.testing.assert_close(target.data, expected, rtol=0, atol=1e-12)
    before = [tensor.clone() for tensor in agent.target_critic.parameters()]
    agent.update_target()
    step = agent.config.hierarchical.critic.tau
    for target, old, source in zip(agent.target_critic.parameters(), before, sources, strict=True):
        torch.testing.assert_close(target.data, old * (1 - step) + source * step, rtol=0, atol=1e-12)
