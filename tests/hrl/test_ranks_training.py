"""Two processes that train together (gloo, on a CPU) learn the same as one; and their errors are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.distributed import launch
from r2v.errors import EnvironmentFault

from . import ranks_training, trainers
from .trainers import lines, losses, trainer_of

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("warm_ranks")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def gathered(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    launch(2, "-m", ranks_training.__name__, "everything", str(folder), str(model))
    return folder


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    trainer_of(model, folder).run()
    return folder


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_two_ranks_step_as_one_and_a_mean_per_rank_does_not(per: str, gathered: Path) -> None:
    """20 steps of AdamW on utterances of 1 to 15 tokens, one denominator for all."""
    one, (first, second) = ranks_training.steps(micro_batch_size=8, per=per), [made[per] for made in told(gathered)]
    assert first == second, "all ranks take the same steps"
    assert max(abs(a - b) for a, b in zip(first["losses"], one["losses"], strict=True)) < 2e-13
    assert max(abs(a - b) for a, b in zip(first["weights"], one["weights"], strict=True)) < 2e-13
    assert abs(one["losses"][0] - one["losses"][-1]) > 0.1, "they went somewhere"
    assert one["mean_per_rank"] == pytest.approx(one["losses"][0], abs=1e-12)
    if per == "token":
        assert abs(first["mean_per_rank"] - one["losses"][0]) > 0.05


def test_a_loss_that_is_no_number_on_one_rank_stops_both_before_they_step(gathered: Path) -> None:
    for made in (one["nan"] for one in told(gathered)):
        assert "critic: its loss is nan" in made["said"] and "hierarchical.critic.lr (now 0.01)" in made["said"]
        assert "\n" not in made["said"]
        assert made["moved"] == 0.0 and made["again"] == 24.0


def test_two_ranks_train_whole_iterations_as_one_does(gathered: Path, alone: Path) -> None:
    assert len(losses(alone)) > 15
    assert losses(gathered / "together") == pytest.approx(losses(alone), abs=1e-9)
    assert [line["rollout/tokens"] for line in lines(gathered / "together")] == [
        line["rollout/tokens"] for line in lines(alone)
    ]


def test_a_rank_that_dies_is_told_and_one_process_goes_on(model: Path, alone: Path, tmp_path: Path) -> None:
    """One process resumes from the checkpoint of two ranks and reaches the result of one process alone."""
    with pytest.raises(EnvironmentFault, match="rank 1 was killed from outside"):
        launch(2, "-m", ranks_training.__name__, "dying", str(tmp_path), str(model))
    assert [line["iteration"] for line in lines(tmp_path / "dying")] == [0, 1]
    trainer_of(model, tmp_path / "dying").run()
    assert losses(tmp_path / "dying") == pytest.approx(losses(alone), abs=1e-9)
