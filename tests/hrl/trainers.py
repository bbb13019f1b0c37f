"""A training small enough for tests: a random Llama of one layer, word problems, and a checker with varied scores.

Run as a script it trains in a process of its own, which kills itself at the given point:

    python trainers.py FOLDER MODEL after NUMBER      # when so many phases have passed
    python trainers.py FOLDER MODEL within NUMBER     # while it scores that many-th answer
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.recipes.toy_policy import build_tokenizer, vocabulary
from r2v.config import CriticConfig, GuidanceConfig, HierarchicalConfig, PolicyConfig, ReplayConfig
from r2v.distributed import launch
from r2v.errors import EnvironmentFault
from r2v.hrl.models.roles import build_roles
from r2v.hrl.parallel.micro_batch import MicroBatchSizes
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.metrics import METRICS_FILE
from r2v.hrl.training.trainer import Trainer
from r2v.policy.precision import use_float64_layers
from r2v.randomness import uniform

LOSSES = (
    "critic/loss",
    "critic/td_held_out",
    "actor/loss",
    "actor/loss_last",
    "guidance/loss",
    "value/loss",
    "baseline/loss",
    "actor/advantage_mean",
    "guidance/advantage_std",
    "reward/mean",
    "held_out/acc/turn2",
)
PROBLEMS, HELD_OUT = word_problems(12, 0, "train"), word_problems(4, 0, "eval")


def language_model(seed: int = 0) -> Any:
    """Return a random Llama of one layer, in float64 throughout."""
    model = _random(seed).double().eval()
    use_float64_layers(model)
    return model


def _random(seed: int) -> Any:
    size = len(vocabulary())
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            max_position_embeddings=256,
            initializer_range=0.3,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=4,
        )
    )


def model_at(folder: Path) -> Path:
    """Save the model and the toy policy's tokenizer into a folder."""
    _random(0).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


BASE = HierarchicalConfig(
    iterations=3,
    episodes=4,
    answer_tokens=4,
    hint_tokens=3,
    lr=1e-2,
    guidance_lr=1e-2,
    evaluate_every=2,
    save_every=2,
    rewards=[0.25, 1.0],
    critic=CriticConfig(updates=2, warmup=1, batch_size=8, max_tokens=40, lr=1e-3),
    replay=ReplayConfig(capacity=40, max_age=1),
)
"""A small training; the replay buffer wraps around, and turns become too old within it."""

EVERYTHING = replace(
    BASE,
    turns=3,
    rewards=[0.0, 0.5, 1.0],
    algorithm="ppo",
    updates=2,
    advantage="gae",
    per="token",
    token_baseline=True,
    discount_weight=True,
    kl=replace(BASE.kl, mode="reward", first=0.1, later=0.05),
    guidance=GuidanceConfig(baseline="value", judging=0.1, leak=0.1, length=0.01, sees_score=True),
    critic=replace(BASE.critic, draws=2, pessimistic=True),
)


def grade(problem: Problem, said: str) -> float:
    """Return one of many scores, unrelated to arithmetic."""
    return uniform("grade", problem.id, said)


def trainer_of(
    model: Path,
    folder: Path,
    h: HierarchicalConfig = BASE,
    *,
    stop: Callable[[], bool] = lambda: False,
    checker: Callable[[Problem, str], float] = grade,
    micro_batch_size: int = 32,
    lora: int = 4,
    load_in_4bit: bool = False,
) -> Trainer:
    """Return a trainer of this configuration in this process."""
    policy = PolicyConfig(model_name=str(model), lora_r=lora, load_in_4bit=load_in_4bit, device="cpu", max_seq_len=160)
    roles = build_roles(policy, h, 0, devices=Devices.all_on("cpu"))
    return Trainer(
        roles=roles,
        problems=PROBLEMS,
        held_out=HELD_OUT,
        prompter=Prompter(roles.tokenizer),
        h=h,
        seed=0,
        checker=checker,
        folder=folder,
        stop=stop,
        micro_batch_sizes=MicroBatchSizes(smallest=micro_batch_size),
        prompt_tokens=policy.max_seq_len,
    )


def in_ranks(module: str, model: Path, begun: Sequence[Path], fresh: Callable[[], Path]) -> Path:
    """Run a module in two ranks, in a `fresh` folder with copies of the trainings that were `begun`; return the folder.
    Run it once more, in another folder, if a rank crashed in native code: gloo's own thread does in torch 2.13, once in
    some 150 launches (docs/LOG.md)."""
    for again in (True, False):
        folder = fresh()
        for one in begun:
            shutil.copytree(one, folder / one.name, symlinks=True)
        try:
            launch(2, "-m", module, str(folder), str(model))
        except EnvironmentFault as fault:
            if not again or "crashed (SIG" not in str(fault):
                raise
            warnings.warn(str(fault), stacklevel=1)
        else:
            break
    return folder


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the results that each of two ranks has written under a name."""
    return [json.loads((folder / f"rank-{rank}.json").read_text())[name] for rank in range(2)]


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of its metrics."""
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def lasting(folder: Path) -> list[dict[str, Any]]:
    """Return its metrics without durations and figures that depend on interruptions."""
    passing = ("seconds/", "memory/", "critic/draws", "rollout/tokens_per_s", "overlap/")
    return [{name: value for name, value in line.items() if not name.startswith(passing)} for line in lines(folder)]


def losses(folder: Path) -> list[float]:
    """Return the losses of every iteration, in order."""
    return [line[name] for line in lines(folder) for name in LOSSES if name in line]


def die() -> None:
    """End by SIGKILL, as the kernel's OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


class Counted:
    """Calls `act`; kills the process at the `last` call."""

    def __init__(self, last: int, act: Callable[..., Any]) -> None:
        self.left, self.act = last, act

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            die()
        return self.act(*args)


def main(folder: Path, model: Path, where: str, number: int) -> None:
    """Train until the process is killed."""
    if where == "after":
        trainer_of(model, folder, stop=Counted(number, lambda: False)).run()
    else:
        trainer_of(model, folder, checker=Counted(number, grade)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
