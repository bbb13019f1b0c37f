"""Whole iterations on a tiny model: every algorithm, in any micro-batches and placement, reaches the same figures."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import CriticConfig, GuidanceConfig, HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.training.trainer import Trainer, rate_share
from r2v.policy.export import export
from r2v.policy.load import load_policy
from r2v.storage.files import content_sha256

from .. import trainers
from ..trainers import BASE, EVERYTHING, lasting, lines, losses, trainer_of

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the report of an undisturbed training."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, trainer_of(model, folder).run()


def test_an_iteration_leaves_a_line_of_all_that_was_measured(plain: tuple[Path, dict[str, Any]]) -> None:
    folder, report = plain
    told = lines(folder)
    assert [line["iteration"] for line in told] == [0, 1, 2]
    assert [line["actor/version"] for line in told] == [line["guidance/version"] for line in told] == [0, 1, 2]
    assert ["actor/loss" in line for line in told] == [False, True, True], "a warm-up of one iteration"
    assert ["held_out/acc/turn2" in line for line in told] == [False, True, True]
    wanted = {
        "acc/turn1",
        "acc/turn2",
        "delta",
        "wrong_to_right",
        "right_to_wrong",
        "hint/tokens",
        "hint/leak",
        "same_answer",
        "reward/std",
        "critic/td_held_out",
        "critic/q_mean",
        "critic/v_max",
        "critic/corr",
        "critic/gap",
        "actor/advantage_mean",
        "actor/kl",
        "guidance/kl",
        "actor/clipped",
        "actor/entropy",
        "critic/grad_norm",
        "actor/grad_norm",
        "guidance/grad_norm",
        "replay/age",
        "seconds/rollout",
        "seconds/actor",
        "rollout/tokens",
    }
    assert wanted <= told[-1].keys()
    for measured in (report["untrained"], report["trained"]):
        assert measured["problems"] == 4 and len(measured["accuracy"]) == 2
    assert report["iterations"] == 3


def test_a_measurement_has_no_luck_in_it(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    assert trainer._evaluate(0) == trainer._evaluate(0)


def test_both_policies_move_and_the_reference_does_not(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path)
    before = {role: trainer.roles.state(role) for role in ("actor", "guidance", "critic", "target")}
    base = {
        name: tensor.clone()
        for name, tensor in trainer.roles.language_models["reference"][0].model.named_parameters()
        if "lora" not in name
    }
    trainer.run()
    for role, state in before.items():
        moved = max(float((now - state[name]).abs().max()) for name, now in trainer.roles.state(role).items())
        assert moved > 1e-6, role
    assert all(
        torch.equal(tensor, base[name])
        for name, tensor in trainer.roles.language_models["reference"][0].model.named_parameters()
        if name in base
    )


@pytest.mark.parametrize(("h", "micro_batch_size"), [(BASE, 1), (EVERYTHING, 3)], ids=["base", "everything"])
def test_micro_batches_change_no_loss(
    h: HierarchicalConfig, micro_batch_size: int, model: Path, tmp_path: Path
) -> None:
    """Rows one or three at a time, and all at once; two iterations that learn, so that steps are compared too."""
    figures, h = [], replace(h, iterations=2, evaluate_every=9, critic=replace(h.critic, warmup=0))
    for rows in (micro_batch_size, 64):
        trainer_of(model, tmp_path / str(rows), h, micro_batch_size=rows).run()
        figures.append(losses(tmp_path / str(rows)))
    assert len(figures[0]) > 15
    assert figures[0] == pytest.approx(figures[1], abs=1e-9)


def test_where_roles_stand_changes_no_loss(model: Path, plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """One base with adapters, three copies, and two roles that learn at the same time."""
    for placement in ("full", "split"):
        trainer_of(model, tmp_path / placement, replace(BASE, placement=placement)).run()
        assert losses(tmp_path / placement) == pytest.approx(losses(plain[0]), abs=1e-9)
    assert lines(tmp_path / "split")[-1]["overlap/ratio"] > 0
    assert "overlap/ratio" not in lines(tmp_path / "full")[-1]


def test_without_a_critic_returns_are_compared_with_each_other(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, replace(BASE, advantage="score", iterations=2))
    before = trainer.roles.state("critic")
    trainer.run()
    told = lines(tmp_path)
    assert all("actor/loss" in line for line in told), "no warm-up: there is nothing to warm"
    assert not any(name.startswith(("critic/", "replay/")) for line in told for name in line)
    assert all(torch.equal(now, before[name]) for name, now in trainer.roles.state("critic").items())
    assert abs(told[0]["actor/advantage_mean"]) < 1e-12 < told[0]["actor/advantage_std"]


def test_without_guidance_the_actor_learns_alone(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, replace(BASE, guidance=GuidanceConfig(enabled=False)))
    before = trainer.roles.state("guidance")
    trainer.run()
    told = lines(tmp_path)
    assert not any(name.startswith(("guidance/l", "hint/")) for line in told for name in line)
    assert [line["actor/version"] for line in told] == [0, 1, 2]
    assert {line["guidance/version"] for line in told} == {0}
    assert all(torch.equal(now, before[name]) for name, now in trainer.roles.state("guidance").items())


def test_all_weights_are_trained_where_there_are_no_adapters(model: Path, tmp_path: Path) -> None:
    trainer = trainer_of(model, tmp_path, replace(BASE, iterations=2), lora=0)
    trainer.run()
    assert trainer.roles.placement == "full" and lines(tmp_path)[-1]["actor/kl"] == pytest.approx(0, abs=1e-12)


def test_everything_at_once(model: Path, tmp_path: Path) -> None:
    """Three turns, PPO, generalised advantages, a learned baseline for both, the KL in the reward."""
    trainer_of(model, tmp_path, EVERYTHING).run()
    last = lines(tmp_path)[-1]
    assert {"value/loss", "baseline/loss", "acc/turn3"} <= last.keys() and last["actor/version"] == 4
    assert last["actor/loss"] != last["actor/loss_last"], "two updates on one lesson"


def test_the_actor_leaves_as_a_policy(model: Path, plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    trainer = trainer_of(model, plain[0])
    assert trainer.run() == plain[1], "what is done is not done again"
    export(trainer.roles.actor_as_policy(), tmp_path / "final")
    policy = replace(trainers.PolicyConfig(model_name=str(model), lora_r=4, device="cpu"), dtype="float64")
    ids = torch.tensor([[2, 7, 9, 3]])
    with trainer.roles.using("actor") as actor, torch.no_grad():
        ours = actor(ids).logits
    assert float((load_policy(policy, tmp_path / "final").model(ids).logits - ours).abs().max()) < 1e-6


def test_a_rate_that_is_too_high_is_told_and_the_checkpoint_kept(model: Path, tmp_path: Path) -> None:
    h = replace(BASE, iterations=4, save_every=1)
    object.__setattr__(h, "lr", 1e200)  # invalid in a file: simulates too high a rate for a larger model
    with pytest.raises(UsageError, match=r"actor: its loss is nan .* hierarchical\.lr \(now 1e\+200\)") as refused:
        trainer_of(model, tmp_path, h).run()
    assert "\n" not in str(refused.value)
    assert [line["iteration"] for line in lines(tmp_path)] == [0, 1]
    again = trainer_of(model, tmp_path, h)
    again.resume()
    assert (again.state.iteration, again.state.actor) == (2, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"episodes": 13}, "there are 12 problems"),
        ({"episodes": 1, "advantage": "score"}, "there is one an iteration"),
        ({"episodes": 1, "guidance": GuidanceConfig(hints=1, baseline="batch_mean")}, "single one"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_played(
    change: dict[str, Any], said: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        trainer_of(model, tmp_path, replace(BASE, **change))


def test_answers_that_grow_alike_are_told_once(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scores differ in the first iterations and are all equal afterwards."""
    asked: list[int] = []

    def checker(problem: Any, said: str) -> float:
        asked.append(1)
        return trainers.grade(problem, said) if len(asked) < 80 else 0.3

    h = replace(BASE, iterations=14, advantage="score", evaluate_every=99)
    with caplog.at_level(logging.WARNING, logger="r2v"):
        trainer_of(model, tmp_path, h, checker=checker).run()
    assert caplog.text.count("echo trap") == 1


def test_the_same_again_is_the_same_to_the_bit(model: Path, plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    trainer: Trainer = trainer_of(model, tmp_path)
    assert trainer.run() == plain[1]
    assert lasting(tmp_path) == lasting(plain[0])
    assert content_sha256(tmp_path / "checkpoint-21" / "of.json") == content_sha256(
        plain[0] / "checkpoint-21" / "of.json"
    )


@pytest.mark.parametrize("advantage", ["rloo", "grpo"])
def test_groups_of_first_answers_train_without_a_critic_or_hints(advantage: Any, model: Path, tmp_path: Path) -> None:
    h = replace(
        BASE,
        advantage=advantage,
        group=3,
        turns=1,
        rewards=[1.0],
        guidance=GuidanceConfig(enabled=False),
        iterations=2,
        entropy=0.01,
        lr_warmup=1,
        lr_schedule="cosine",
        normalize_advantages=True,
    )
    trainer = trainer_of(model, tmp_path, h)
    assert trainer.critic_trainer is None
    trainer.run()
    first, second = lines(tmp_path)
    assert first["actor/tokens"] > 0 and first["actor/lr"] == h.lr / 2 and second["actor/lr"] == h.lr
    assert "acc/turn2" not in first and first["same_answer"] == 0.0
    assert first["actor/advantage_mean"] == pytest.approx(0, abs=1e-9)


def test_one_long_answer_is_cut_and_counted_and_ends_nothing(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Prompts are bounded, those of the critic's replay too, and the first iteration reports the cuts."""
    h = replace(BASE, iterations=1, critic=replace(BASE.critic, draws=1, warmup=0))
    trainer = trainer_of(model, tmp_path, h)
    whole = max(len(one.answer.prompt) for one in _second_answers(trainer))
    limit = whole - 1
    trainer.prompt_tokens = limit
    assert max(len(one.answer.prompt) for one in _second_answers(trainer)) == limit
    with caplog.at_level(logging.WARNING, logger="r2v"):
        trainer.run()
    [line] = lines(tmp_path)
    assert line["prompt/cut"] >= 1 and "prompts were cut to fit policy.max_seq_len" in caplog.text


def _second_answers(trainer: Trainer) -> list[Any]:
    return [episode.turns[1] for episode in trainer._play(trainers.PROBLEMS, 0)]


def test_a_training_that_gets_no_better_ends_and_keeps_its_best_actor_and_some_conversations(
    model: Path, tmp_path: Path
) -> None:
    """Held-out answers are right until the actor has moved twice, and never after."""
    trainer: Trainer

    def checker(problem: Any, said: str) -> float:
        return float(problem not in trainers.HELD_OUT or trainer.state.actor < 2 * BASE.updates)

    h = replace(BASE, iterations=9, evaluate_every=1, patience=2, save_every=1)
    trainer = trainer_of(model, tmp_path, h, checker=checker)
    report = trainer.run()
    best = report["best"]
    assert (best["accuracy"], best["iteration"], report["iterations"]) == (1.0, 2, 3)
    assert report["trained"]["accuracy"][-1] == 0.0
    now, kept = trainer.roles.state("actor"), trainer.state.best.weights
    assert kept.keys() == now.keys() and any(not torch.equal(kept[name], now[name]) for name in now)
    assert list(report["samples"]) == [str(number) for number in range(report["iterations"] + 1)]
    first = report["samples"]["0"][0]
    assert first["problem"] == trainers.HELD_OUT[0].text and len(first["answers"]) == len(first["scores"]) == 2
    assert len(first["hints"]) == 1
    again = trainer_of(model, tmp_path, h, checker=checker)
    trainer = again
    assert again.run() == report, "a run that ended so is over"


RATED = HierarchicalConfig(iterations=12, lr_warmup=3, critic=CriticConfig(warmup=4))


def test_the_rate_rises_after_the_critics_warm_up_and_then_stays() -> None:
    shares = [rate_share(RATED, iteration) for iteration in range(12)]
    assert shares == [0.25] * 5 + [0.5, 0.75, 1.0] + [1.0] * 4
    alone = replace(RATED, advantage="grpo", group=2)
    assert [rate_share(alone, iteration) for iteration in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(rate_share(HierarchicalConfig(), iteration) == 1 for iteration in range(100))


def test_it_falls_to_nothing_at_the_end_but_never_before() -> None:
    falls = replace(RATED, lr_schedule="linear")
    assert [rate_share(falls, iteration) for iteration in range(7, 12)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    cosine = [rate_share(replace(RATED, lr_schedule="cosine"), iteration) for iteration in range(7, 12)]
    assert cosine[0] == 1 and cosine == sorted(cosine, reverse=True) and 0 < cosine[-1] < 0.1
    assert cosine[2] == pytest.approx(0.6545, abs=1e-4)
