"""A trainer from a configuration: its training and evaluation problems, and the initial weights of both policies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from r2v.config import Config, CriticConfig, HierarchicalConfig, PolicyConfig, ProblemsConfig, RolloutConfig
from r2v.errors import InputError, UsageError
from r2v.hrl.parallel.micro_batch import (
    CPU_MICRO_BATCH,
    MicroBatchFit,
    MicroBatchSizes,
    fit,
    largest_micro_batches,
    planned,
)
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.problem_set import problems_of
from r2v.policy.export import export
from tests.memory.measuring import measure

from .. import trainers


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    model = trainers.model_at(tmp_path_factory.mktemp("model"))
    h = replace(trainers.BASE, problems=ProblemsConfig(count=20, held_out=5), iterations=1)
    return Config(policy=PolicyConfig(model_name=str(model), lora_r=4, device="cpu", max_seq_len=160), hierarchical=h)


def written(path: Path, count: int) -> Path:
    path.write_text(
        "".join(
            json.dumps({"id": f"n{i}", "problem": f"what is {i} and 1", "answer": str(i + 1)}) + "\n"
            for i in range(count)
        )
    )
    return path


def test_bundled_problems_do_not_depend_on_the_seed_and_do_not_overlap() -> None:
    trained, held_out = problems_of(ProblemsConfig(count=50, held_out=20))
    assert (len(trained), len(held_out)) == (50, 20)
    assert not {one.id for one in trained} & {one.id for one in held_out}
    assert problems_of(ProblemsConfig(count=30, held_out=20))[0] == trained[:30]


def test_a_file_is_shared_out_by_key_whatever_its_order(tmp_path: Path) -> None:
    path = written(tmp_path / "problems.jsonl", 30)
    asked = ProblemsConfig(path=str(path), count=12, held_out=10)
    trained, held_out = problems_of(asked)
    assert (len(trained), len(held_out)) == (12, 10) and not set(trained) & set(held_out)
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert problems_of(asked) == (trained, held_out)
    with pytest.raises(InputError, match="has 30 problems, hierarchical.problems.held_out=30 leaves none"):
        problems_of(replace(asked, held_out=30))


def test_it_trains_from_a_configuration_alone(config: Config, tmp_path: Path) -> None:
    trainer = build_trainer(config, tmp_path)
    report = trainer.run()
    assert report["iterations"] == 1 and report["trained"]["problems"] == 5
    assert trainer.roles.placement == "shared" and (tmp_path / "metrics.jsonl").exists()
    other = replace(config, policy=replace(config.policy, lora_alpha=99))
    with pytest.raises(InputError, match=r"policy\.lora_alpha"):
        build_trainer(other, tmp_path).run()


def test_it_starts_from_exported_weights_and_knows_them(config: Config, tmp_path: Path) -> None:
    first = build_trainer(config, tmp_path / "first")
    with torch.no_grad():
        for tensor in first.roles.parameters("actor"):
            tensor += 0.1
    export(first.roles.actor_as_policy(), tmp_path / "weights")
    second = build_trainer(config, tmp_path / "second", tmp_path / "weights")
    ids = torch.tensor([[2, 7, 9, 3]])
    with first.roles.using("actor") as one, torch.no_grad():
        wanted = one(ids).logits
    for role in ("actor", "guidance", "reference"):
        with second.roles.using(role) as model, torch.no_grad():
            assert float((model(ids).logits - wanted).abs().max()) < 1e-6
    assert second.identity["weights"] != first.identity["weights"] == ""


def test_what_does_not_fit_together_is_refused(config: Config, tmp_path: Path) -> None:
    h = config.hierarchical
    with pytest.raises(UsageError, match="there are 3 problems"):
        build_trainer(replace(config, hierarchical=replace(h, problems=replace(h.problems, count=3))), tmp_path)


LARGE = HierarchicalConfig(
    answer_tokens=512, hint_tokens=128, critic=CriticConfig(model_name="FacebookAI/roberta-base", max_tokens=512)
)


def test_rows_at_a_time_are_what_the_planner_finds() -> None:
    """The 3B model on one 44.53 GiB GPU: a few rows under adapters, more on a larger GPU, none where all is trained."""
    policy = PolicyConfig(model_name="meta-llama/Llama-3.2-3B", lora_r=16, max_seq_len=512)
    here, there = (
        largest_micro_batches(planned(policy, LARGE, "shared", size * 2**30, 1, measure=measure))
        for size in (44.53, 140)
    )
    assert 1 <= here.smallest < there.smallest
    assert here.of("critic") > here.of("actor") == here.smallest, "RoBERTa fits more rows than a 3B model"
    assert str(here).startswith(f"{here.smallest} (critic ") and here.of("unknown") == here.smallest
    tight = largest_micro_batches(planned(policy, LARGE, "shared", 12 * 2**30, 1, measure=measure), requested=3)
    assert tight.of("critic") == 3 and tight.by_rollout["actor"] < 64, "fewer than rollout.batch_size asks for"
    for most in (64, None):
        rows = tight.rollout_rows(RolloutConfig(batch_size=most)).rows
        assert rows == {role: min(most or 512, rows) for role, rows in tight.by_rollout.items()}
    with pytest.raises(UsageError, match=r"placement=full: does not fit 1 x 44\.53 GiB .*r2v plan") as refused:
        planned(replace(policy, lora_r=0), LARGE, "full", 44.53 * 2**30, 1, measure=measure)
    assert "\n" not in str(refused.value)


def test_layers_run_again_where_the_plan_finds_that_they_must() -> None:
    policy = PolicyConfig(model_name="meta-llama/Llama-3.2-3B", lora_r=16, max_seq_len=512)
    small, large = (planned(policy, LARGE, "shared", size * 2**30, 1, measure=measure) for size in (13, 140))
    assert small.strategy.checkpoint and not large.strategy.checkpoint
    with pytest.raises(UsageError, match="does not fit"):
        planned(policy, replace(LARGE, gradient_checkpointing=False), "shared", 13 * 2**30, 1, measure=measure)
    assert planned(
        policy, replace(LARGE, gradient_checkpointing=True), "shared", 140 * 2**30, 1, measure=measure
    ).strategy.checkpoint


def test_full_training_of_the_seeds_model_is_planned_in_parts() -> None:
    """3.2 B weights do not fit one H200 with their moments; laid out over 8 of them they do, but not 8 times whole."""
    policy = PolicyConfig(model_name="meta-llama/Llama-3.2-3B", lora_r=0, max_seq_len=512)
    h200 = 140 * 2**30
    for shards in ("fsdp", "zero2", "zero3"):
        found = planned(policy, replace(LARGE, shards=shards), "full", h200, 8, measure=measure)  # type: ignore[arg-type]
        assert found.fits and found.strategy.shards == shards and largest_micro_batches(found).smallest >= 1
    aside = planned(policy, replace(LARGE, offload=True), "full", 2 * h200, 1, measure=measure)
    assert aside.strategy.offload and aside.strategy.placement == "full"


def test_rows_that_are_asked_for_are_taken() -> None:
    policy, cpu = PolicyConfig(), Devices.all_on("cpu")
    assert fit(policy, replace(LARGE, micro_batch=3), "shared", cpu).sizes.of("critic") == 3
    assert fit(policy, LARGE, "shared", cpu) == MicroBatchFit(
        sizes=MicroBatchSizes(smallest=CPU_MICRO_BATCH), gradient_checkpointing=False
    )
    assert fit(policy, replace(LARGE, gradient_checkpointing=True), "shared", cpu).gradient_checkpointing
