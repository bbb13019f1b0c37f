"""`r2v plan`: what a training stage needs of a GPU, and how it fits, before one is asked for.

    r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --n 2
    r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --n 2 --lora-r 0 --precision float32    # refused, exit 2
    r2v plan --stage bc --config configs/webarena/noisy.yaml --gpu 80GiB
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from r2v.errors import UsageError
from r2v.memory.sizes import parse_size

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
_STAGES = ("hierarchical", "bc", "preference", "verifier")
_SHARDS = ("none", "zero2", "zero3", "fsdp")
_SEED_GPU = "44.53GiB"
"""The seed's own GPU."""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `plan` to the command line."""
    plan = commands.add_parser("plan", help="what a training stage needs of a GPU, and the batches that fit",
                               description="Needs no GPU, no weights, no network: arithmetic on a config.json.")
    plan.add_argument("--stage", choices=_STAGES, default="hierarchical")
    plan.add_argument("--config", metavar="FILE", help="takes policy.* and training.* from it")
    plan.add_argument("--overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    plan.add_argument("--gpu", metavar="SIZE", default=_SEED_GPU, help="memory of one GPU, such as 80GiB (44.53GiB)")
    plan.add_argument("--n", type=int, default=1, metavar="GPUS", help="how many of them (1)")
    plan.add_argument("--gpu-type", default="", help="its name in --gres, such as a100")
    _add_work(plan)
    plan.add_argument("--placement", choices=["auto", "shared", "split", "full"], default="auto")
    plan.add_argument("--shards", choices=["auto", *_SHARDS], default="auto")
    plan.add_argument("--checkpointing", choices=["auto", "on", "off"], default="auto")
    plan.add_argument("--calibration", metavar="FILE", help="factors that a probe on this GPU (--gpu-type) has left")
    plan.add_argument("--json", action="store_true", help="for a program")
    plan.set_defaults(act=run)


def _add_work(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--model", help="= policy.model_name: tiny, a directory with a config.json, or a known name")
    plan.add_argument("--critic", default="FacebookAI/roberta-base", help="its backbone (roberta-base)")
    plan.add_argument("--baseline", choices=["auto", "loo", "value"], default="auto",
                      help="guidance's: leave-one-out, or a value function (auto: as the seed when all weights train)")
    plan.add_argument("--lora-r", type=int, help="rank of the adapters; 0 trains all weights")
    plan.add_argument("--precision", choices=["mixed", "bfloat16", "float32"], default="mixed")
    plan.add_argument("--four-bit", action="store_true", default=None, help="= policy.load_in_4bit")
    plan.add_argument("--optimizer", choices=["adamw", "adamw_fused", "adamw_8bit"], default="adamw")
    for flag, what in (("prompt", "tokens before a reply"), ("completion", "tokens of a reply"),
                       ("critic-tokens", "tokens of a text that the critic reads"),
                       ("episodes", "conversations of an iteration"), ("hints", "guidance answers to a first turn"),
                       ("batch", "rows of an update, all GPUs together")):
        plan.add_argument(f"--{flag}", type=int, metavar="N", help=what)


def run(values: argparse.Namespace) -> int:
    """Print the plan. Raises UsageError where nothing fits, or the options contradict each other."""
    from r2v.memory.page import as_json, page, verdict
    from r2v.memory.planner import plan
    from r2v.memory.work import Machine

    work = work_of(values)
    machine = Machine(memory=parse_size(values.gpu), gpus=values.n, kind=values.gpu_type,
                      factors=_factors(values, work.model))
    checkpoint = {"auto": None, "on": True, "off": False}[values.checkpointing]
    found = plan(work, machine, placement=_named(values.placement), shards=_named(values.shards),
                 checkpoint=checkpoint)
    print(json.dumps(as_json(found), indent=2) if values.json else "\n".join(page(found)))
    if not found.fits:
        sys.stdout.flush()
        raise UsageError(verdict(found))
    return 0


def _factors(values: argparse.Namespace, shape: Any) -> Mapping[str, float]:
    from r2v.memory.calibration import chosen, read

    return chosen(read(Path(values.calibration)), shape, values.gpu_type).factors if values.calibration else {}


def _named(word: str) -> Any:
    return None if word == "auto" else word


def work_of(values: argparse.Namespace) -> Any:
    """The `Work` that the options describe: configuration, then flags."""
    from r2v.config import load
    from r2v.memory.shapes import shape_of
    from r2v.memory.work import Work

    config = load(values.config, values.overrides)
    policy, hierarchical = config.policy, values.stage == "hierarchical"
    # The bundled student's default is full training; three roles on one base need adapters.
    rank = policy.lora_r or (16 if hierarchical else 0) if values.lora_r is None else values.lora_r
    given = {name: getattr(values, name.removesuffix("_tokens") if name != "critic_tokens" else name)
             for name in ("prompt_tokens", "completion_tokens", "critic_tokens", "episodes", "hints", "batch")}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not hierarchical:
        options = _of_phase(config.training.phase(values.stage), policy.max_seq_len) | options
    elif not shape_of(values.critic).encoder:
        raise UsageError(f"--critic {values.critic}: a decoder; name an encoder such as FacebookAI/roberta-base")
    return Work(
        stage=values.stage, model=shape_of(values.model or policy.model_name), lora_rank=rank,
        critic=shape_of(values.critic) if hierarchical else None, precision=values.precision,
        optimizer=values.optimizer, four_bit=bool(values.four_bit) or (policy.load_in_4bit is True and rank > 0),
        value=values.baseline == "value" or (values.baseline == "auto" and rank == 0 and hierarchical), **options)


def _of_phase(phase: Any, longest: int) -> dict[str, int]:
    """Lengths and the batch of a stage that has them in its configuration."""
    return {"prompt_tokens": longest - longest // 8, "completion_tokens": longest // 8,
            "batch": phase.batch_size * phase.gradient_accumulation_steps}
