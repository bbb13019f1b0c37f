"""A checker and a reward from outside the package: one module on the path, named in the configuration."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import identity, load
from r2v.errors import InputError, UsageError
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.trainer import Trainer
from r2v.stages.train_hierarchical import STAGE
from tests.hrl import trainers

PAGE = Path(__file__).parents[2] / "docs/extending/checker.md"
KEYS = ("hierarchical.problems.checker=mychecks:close", "hierarchical.guidance.reward=mychecks:only_mending")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the code of the docs page into one file on the path."""
    path = tmp_path / "mychecks.py"
    path.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mychecks", raising=False)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


def trainer(model: Path, folder: Path, *overrides: str) -> Trainer:
    config = load(None, [f"policy.model_name={model}", "policy.device=cpu", "policy.lora_r=4", *SMALL, *overrides])
    return build_trainer(config, folder)


SMALL = (
    "hierarchical.iterations=1",
    "hierarchical.episodes=3",
    "hierarchical.answer_tokens=3",
    "hierarchical.hint_tokens=3",
    "hierarchical.problems.count=6",
    "hierarchical.problems.held_out=2",
    "hierarchical.critic.updates=1",
    "hierarchical.critic.warmup=0",
    "hierarchical.critic.batch_size=4",
)


def test_one_file_adds_a_checker_and_a_reward(module: Path, model: Path, tmp_path: Path) -> None:
    training = trainer(model, tmp_path / "run", *KEYS)
    problem = training.problems[0]
    assert [training.checker(problem, str(int(problem.answer) + off)) for off in (0, 1, 5)] == [1.0, 0.5, 0.0]
    rewards: list[Any] = []
    score = training.checker
    training.checker = lambda problem, answer: rewards.append(answer) or score(problem, answer)
    training.run()
    assert rewards and training.state.iteration == 1
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_a_reward_of_ones_own_is_what_hints_are_rewarded_with(module: Path, model: Path, tmp_path: Path) -> None:
    module.write_text(module.read_text() + "\n\ndef by_length(hints):\n    return hints.tokens\n")
    training = trainer(model, tmp_path / "run", "hierarchical.guidance.reward=mychecks:by_length")
    training._rollout()
    batches, _ = training.policies.training_batches(training.state.episodes, training.critic_trainer)
    hints = [hinted.hint for episode in training.state.episodes for group in episode.hints for hinted in group]
    lengths = torch.tensor([len(hint.tokens) for hint in hints], dtype=torch.float64).reshape(-1, 2)
    torch.testing.assert_close(batches["guidance"].advantage, (lengths - lengths.flip(1)).reshape(-1))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hierarchical.problems.checker=numerik", "checker=numerik: unknown; did you mean numeric?"),
        ("hierarchical.guidance.reward=improve", "guidance.reward must be a path package.module:function, or null"),
        ("hierarchical.problems.checker=nowhere.at:all", "cannot import nowhere.at .*PYTHONPATH"),
        ("hierarchical.problems.checker=mychecks:clos", "mychecks has no clos; did you mean close?"),
        ("hierarchical.guidance.reward=mychecks:nothing", "mychecks has no nothing; "),
    ],
)
def test_a_name_that_cannot_be_loaded_is_one_line(
    override: str, words: str, module: Path, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        trainer(model, tmp_path / "run", override)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no\\nunits')", "failed on a batch of hints \\(ValueError: no units\\)"),
        ("return hints.after[:1]", "gave .* numbers"),
        ("return hints.after * float('nan')", "not all of them finite"),
    ],
)
def test_a_reward_that_fails_is_one_line(body: str, words: str, module: Path, model: Path, tmp_path: Path) -> None:
    module.write_text(f"def bad(hints):\n    {body}\n")
    training = trainer(model, tmp_path / "run", "hierarchical.guidance.reward=mychecks:bad")
    with pytest.raises(InputError, match=words) as refused:
        training.run()
    assert "\n" not in str(refused.value)


def test_an_edited_module_is_another_artifact_and_a_built_in_name_changes_no_fingerprint(module: Path) -> None:
    plain, own = load(None), load(None, KEYS)
    before = identity(STAGE.settings.of(own))
    module.write_text(module.read_text() + "\n# edited\n")
    assert identity(STAGE.settings.of(own)) != before
    built_in = identity(STAGE.settings.of(plain))["hierarchical"]
    assert built_in["problems"]["checker"] == "auto" and "reward" not in built_in["guidance"]
