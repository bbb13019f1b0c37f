"""ArcherAgent: all models behind one name, and the public names of r2v.hrl."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import r2v.hrl
from r2v.config import Config, PolicyConfig
from r2v.hrl import ArcherAgent, DoubleCritic, optimize_batch_processing
from r2v.policy.export import export

from .playing import CPU, build, save_model, settings, stirred


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = save_model(tmp_path_factory.mktemp("model"))
    return Config(policy=PolicyConfig(model_name=str(folder), lora_r=4, device="cpu"), hierarchical=settings())


def test_an_agent_has_the_models_of_its_configuration(config: Config) -> None:
    agent = ArcherAgent(config)
    assert agent.roles.placement == "shared" and set(agent.roles.language_models) == {"actor", "guidance", "reference"}
    assert isinstance(agent.critic, DoubleCritic) and agent.target_critic is not agent.critic
    assert agent.target_critic.state_dict().keys() == agent.critic.state_dict().keys()


def test_the_targets_update_is_one_step_towards_the_critic(config: Config) -> None:
    agent = ArcherAgent(config)
    for tensor in agent.critic.parameters():
        tensor.data += 1.0
    before = [tensor.clone() for tensor in agent.target_critic.parameters()]
    agent._memory_efficient_target_update(0.1)
    for old, new in zip(before, agent.target_critic.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.1, rtol=0, atol=1e-12)


def test_an_agent_starts_from_a_policy_and_where_it_is_put(config: Config, tmp_path: Path) -> None:
    trained = stirred(build(Path(config.policy.model_name)))
    export(trained.actor_as_policy(), tmp_path / "final")
    split = replace(config, hierarchical=settings("split"))
    agent = ArcherAgent(split, weights=tmp_path / "final", devices=CPU)
    assert agent.roles.placement == "split"
    base, adapted = (
        dict(one.roles.language_models["reference"][0].model.named_parameters()) for one in (agent, ArcherAgent(config))
    )
    layer = "model.layers.0.mlp.down_proj"
    was = adapted[f"base_model.model.{layer}.base_layer.weight"]
    assert not torch.equal(base[f"{layer}.weight"], was.to(base[f"{layer}.weight"])), "the policy's adapter is merged"


def test_the_seeds_names_are_where_they_were_and_cost_nothing_unasked() -> None:
    assert optimize_batch_processing(44.53)["base_batch"] == 16
    with pytest.raises(AttributeError, match="Archer"):
        r2v.hrl.Archer  # noqa: B018
    code = (
        "import sys, r2v.hrl; r2v.hrl.optimize_batch_processing; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
