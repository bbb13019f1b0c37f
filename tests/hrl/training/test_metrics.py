"""Figures that are more than a mean, and their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from r2v.errors import EnvironmentFault, InputError
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.training.metrics import METRICS_FILE, MetricsFile, correlation, of_policy, of_values
from r2v.hrl.training.optimizer_step import StepResult


def test_correlation_is_pearsons() -> None:
    generator = torch.Generator().manual_seed(0)
    one, noise = torch.randn(2, 50, dtype=torch.float64, generator=generator)
    assert correlation(one, 3 * one - 1) == pytest.approx(1) and correlation(one, -one) == pytest.approx(-1)
    assert correlation(one, one + noise) == pytest.approx(float(torch.corrcoef(torch.stack([one, one + noise]))[0, 1]))
    assert correlation(one, torch.ones(50, dtype=torch.float64)) == 0.0


def test_what_the_critic_says_is_the_lower_head() -> None:
    q = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, 5.0]], dtype=torch.float64)
    figures = of_values(CriticValues(q=q, v=q / 2, floor=q[0]), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    assert (figures["critic/q_min"], figures["critic/q_mean"], figures["critic/q_max"]) == pytest.approx((0, 5 / 3, 3))
    assert figures["critic/v_mean"] == pytest.approx(1.25) and 0.9 < figures["critic/corr"] < 1


def test_a_policys_sums_become_means_over_tokens() -> None:
    steps = [
        StepResult(loss=1.0, norm=2.0, statistics=(9, 9, 9, 9)),
        StepResult(loss=3.0, norm=4.0, statistics=(1, 20, 2, 10)),
    ]
    assert of_policy("actor", steps) == {
        "actor/loss": 2.0,
        "actor/loss_last": 3.0,
        "actor/grad_norm": 3.0,
        "actor/kl": 0.1,
        "actor/entropy": 2.0,
        "actor/clipped": 0.2,
        "actor/tokens": 10,
    }


def test_lines_are_cut_where_a_checkpoint_was(tmp_path: Path) -> None:
    kept = MetricsFile(tmp_path)
    kept.append({"iteration": 0, "loss": 0.5})
    length = kept.length
    kept.append({"iteration": 1})
    kept.truncate(length)
    kept.append({"iteration": 1, "again": 1})
    assert [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()] == [
        {"iteration": 0, "loss": 0.5},
        {"iteration": 1, "again": 1},
    ]
    with pytest.raises(InputError, match="has .* bytes, the checkpoint beside it knows of 999"):
        kept.truncate(999)
    kept.append({"actor/kl": float("inf"), "loss": float("nan"), "iteration": 2})
    assert (tmp_path / METRICS_FILE).read_text().endswith('{"actor/kl":null,"loss":null,"iteration":2}\n')
    (tmp_path / METRICS_FILE).unlink()
    (tmp_path / METRICS_FILE).mkdir()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        kept.append({"iteration": 2})
