"""Seed 000: its command, its names, its batch table, its placement of the models, and its target update.

`seed_000.md` is the seed itself, byte for byte. Lines of code are taken from it unchanged, and only an ellipsis in one
is filled in.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import re
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
from r2v.hrl.parallel.placement import devices_of
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.state import TRAINING_PHASES
from tests.hrl.playing import save_model, settings
from tests.hrl.trainers import model_at
from tests.seeds.workspace import REPOSITORY, checkout, typed

TEXT = (Path(__file__).parent / "seed_000.md").read_text()
SHA256 = "b9d9ebd2ddc34d9082ea60525ddb9c0cdf85cffb5a805ef1e9cc06e35f7fb9c9"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)
ROLES = {
    "Base LLM": "actor",
    "Main Critic": "critic",
    "Guidance Model": "guidance",
    "Value Function": "value",
    "Reference Model": "reference",
    "Target Critic": "target",
}
"""The seed's names of the models, and their roles here."""


def line_of(start: str) -> str:
    """Return the only line of the seed with this beginning, without its indent."""
    [line] = [line.strip() for line in TEXT.splitlines() if line.strip().startswith(start)]
    return line


def test_the_copy_is_the_seed() -> None:
    assert hashlib.sha256(TEXT.encode()).hexdigest() == SHA256
    assert [text.strip() for language, text in BLOCKS if language == "bash"] == [
        "python scripts/run_memory_optimized.py"
    ]


def test_the_command_needs_no_argument(tmp_path: Path) -> None:
    """It is started and then stopped at its first checkpoint; a whole run takes minutes."""
    root, command = checkout(tmp_path), line_of("python scripts/")
    process = subprocess.Popen(**typed(root, f"exec {command}"), stderr=subprocess.PIPE, text=True)
    latest, deadline = root / "outputs/hierarchical/desk_noisy/checkpoint-latest", time.monotonic() + 240
    while not latest.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 75 and "placement=shared" in said and "micro_batch=" in said, said
    assert latest.exists() and (latest.parent / "metrics.jsonl").read_text().count("\n") >= 1


def test_the_line_for_gsm8k_starts_from_its_own_configuration_and_keeps_it(tmp_path: Path) -> None:
    """As on a node, with a model of the user's own; stopped after its first phase, for a whole run takes hours."""
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
        if "placement=shared" in text:
            process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75 and "answer_tokens=16 hint_tokens=16" in said, said
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


@pytest.mark.parametrize("memory", [0.5, 19.9, 20, 20.1, 24, 40, 40.1, 44.53, 80])
def test_the_batch_table_is_the_one_that_the_seed_types(memory: float) -> None:
    names: dict[str, Any] = {}
    [table] = [text for _, text in BLOCKS if "def optimize_batch_processing" in text]
    exec(compile(table, "seed_000", "exec"), names)
    assert optimize_batch_processing(memory) == names["optimize_batch_processing"](memory)


def test_the_names() -> None:
    for name in ("ArcherAgent", "DoubleCritic", "optimize_batch_processing", "_memory_efficient_target_update"):
        assert name in TEXT
    assert ArcherAgent.__module__.startswith("r2v.hrl") and DoubleCritic.__module__ == "r2v.hrl.algorithm.critic"
    arguments = ", ".join(inspect.signature(ArcherAgent._memory_efficient_target_update).parameters)
    assert f"def _memory_efficient_target_update({arguments}):" in TEXT


def test_split_places_every_model_where_the_seed_does() -> None:
    devices = devices_of("split", "cuda")
    places = {"GPU 0": "cuda:0", "GPU 1": "cuda:1", "CPU": "cpu"}
    lists = re.findall(r"^\*\*(GPU 0|GPU 1|CPU) \(.*\):\*\*\s*\n((?:- .*\n)+)", TEXT, re.M)
    placed = {
        ROLES[model]: places[place] for place, models in lists for model in re.findall(r"^- (.*?) \(", models, re.M)
    }
    assert placed == vars(devices)


def test_training_follows_the_order_of_the_seed_on_its_devices() -> None:
    """Critic, actor, guidance, value function; the last trains within the guidance's phase."""
    [phases] = [text for _, text in BLOCKS if "train_critic(batch)" in text]
    steps = re.findall(r"train_(\w+)\(batch\)\s+# GPU (\d)", phases)
    assert [name for name, _ in steps if name in TRAINING_PHASES] == [
        phase for phase in TRAINING_PHASES if phase in ("critic", "actor", "guidance")
    ]
    devices = vars(devices_of("split", "cuda"))
    assert {name: f"cuda:{gpu}" for name, gpu in steps} == {
        name: devices[{"value_func": "value"}.get(name, name)] for name, _ in steps
    }


class SeedAgent(ArcherAgent):
    """An agent with the seed document's own statement in a method of its own."""

    def offload_target(self, cpu_device: torch.device, *rest: Any) -> None:
        statement = line_of("self.target_critic = DoubleCritic(").replace("...", "*rest")
        exec(statement, {"DoubleCritic": DoubleCritic}, {"self": self, "cpu_device": cpu_device, "rest": rest})


@pytest.fixture
def agent(tmp_path: Path) -> SeedAgent:
    policy = PolicyConfig(model_name=str(save_model(tmp_path / "model")), lora_r=4, device="cpu")
    return SeedAgent(Config(policy=policy, hierarchical=settings()))


def shape(critic: DoubleCritic) -> tuple[nn.Module, int, tuple[int, ...]]:
    """Return backbone, state size and hidden widths of a critic, as its constructor takes them after the device."""
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
    """The seed's own statement on copies gives the same weights for any chunk; training calls the same code."""
    with torch.no_grad():
        for tensor in agent.critic.parameters():
            tensor += torch.linspace(-1, 1, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)
    formula = compile(line_of("target_param.data.copy_("), "seed_000", "exec")
    wanted = [nn.Parameter(target.clone(), requires_grad=False) for target in agent.target_critic.parameters()]
    for target, source in zip(wanted, agent.critic.parameters(), strict=True):
        exec(formula, {"target_param": target, "source_data": source.data.cpu(), "tau": 0.25})
    agent.roles.target.chunk = 10
    agent._memory_efficient_target_update(0.25)
    for target, expected in zip(agent.target_critic.parameters(), wanted, strict=True):
        torch.testing.assert_close(target.data, expected.data, rtol=0, atol=1e-12)
