"""`r2v plan`: what a training stage needs of a GPU, and how it fits, before one is asked for.

r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --n 2
r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --n 2 --lora-r 0 --precision float32    # refused, exit 2
r2v plan --stage bc --config configs/webarena/noisy.yaml --gpu 80GiB
r2v plan --model meta-llama/Llama-3.2-3B --probe calibration.json       # on a GPU: measured, for --calibration
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from r2v.errors import UsageError
from r2v.memory.sizes import parse_size

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
_STAGES = ("hierarchical", "bc", "preference", "verifier")
_SHARDS = ("none", "zero2", "zero3", "fsdp")
_SEED_GPU = "44.53GiB"
"""The seed's own GPU."""
_SEED_CRITIC = "FacebookAI/roberta-base"
_FIELDS = {
    "lora_rank": "lora_r",
    "precision": "precision",
    "four_bit": "four_bit",
    "optimizer": "optimizer",
    "prompt_tokens": "prompt",
    "completion_tokens": "completion",
    "critic_tokens": "critic_tokens",
    "episodes": "episodes",
    "hints": "hints",
    "batch": "batch",
}
"""Fields of a `Work` by the flags that set them."""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `plan` to the command line."""
    plan = commands.add_parser(
        "plan",
        help="what a training stage needs of a GPU, and the batches that fit",
        description="Needs no GPU, no weights, no network: arithmetic on a config.json.",
    )
    plan.add_argument("--stage", choices=_STAGES, default="hierarchical")
    plan.add_argument("--config", metavar="FILE", help="takes policy, training and hierarchical from it")
    plan.add_argument("--overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    plan.add_argument("--gpu", metavar="SIZE", help="memory of one GPU, such as 80GiB (44.53GiB; --probe: as it is)")
    plan.add_argument("--n", type=int, default=1, metavar="GPUS", help="how many of them (1)")
    plan.add_argument("--gpu-type", default="", help="its name in --gres, such as a100")
    _add_work(plan)
    plan.add_argument("--placement", choices=["auto", "shared", "split", "full"], default="auto")
    plan.add_argument("--shards", choices=["auto", *_SHARDS], default="auto")
    plan.add_argument("--checkpointing", choices=["auto", "on", "off"], default="auto")
    measured = plan.add_mutually_exclusive_group()
    measured.add_argument("--calibration", metavar="FILE", help="plan with what a probe of this GPU (--gpu-type) left")
    measured.add_argument(
        "--probe",
        metavar="FILE",
        help="measure the phases on the GPU here, two steps each with "
        "random weights, and keep what they say for --calibration",
    )
    plan.add_argument("--json", action="store_true", help="for a program")
    plan.set_defaults(act=run)


def _add_work(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--model", help="= policy.model_name: tiny, a directory with a config.json, or a known name")
    plan.add_argument("--critic", help=f"its backbone ({_SEED_CRITIC}, or the configuration's)")
    plan.add_argument(
        "--baseline",
        choices=["auto", "loo", "value"],
        default="auto",
        help="guidance's: leave-one-out, or a value function (auto: as the seed when all weights train)",
    )
    plan.add_argument("--lora-r", type=int, help="rank of the adapters; 0 trains all weights")
    plan.add_argument("--precision", choices=["mixed", "bfloat16", "float32"])
    plan.add_argument("--four-bit", action="store_true", default=None, help="= policy.load_in_4bit")
    plan.add_argument("--optimizer", choices=["adamw", "adamw_fused", "adamw_8bit"])
    for flag, what in (
        ("prompt", "tokens before a reply"),
        ("completion", "tokens of a reply"),
        ("critic-tokens", "tokens of a text that the critic reads"),
        ("episodes", "conversations of an iteration"),
        ("hints", "guidance answers to a first turn"),
        ("batch", "rows of an update, all GPUs together"),
    ):
        plan.add_argument(f"--{flag}", type=int, metavar="N", help=what)


def run(values: argparse.Namespace) -> int:
    """Print the plan, and measure it where that is asked for. Raises UsageError where nothing fits, or the options
    contradict each other."""
    from r2v.memory.calibration import factors_for
    from r2v.memory.planner.planner import plan
    from r2v.memory.planner.work import Machine
    from r2v.memory.report import as_json, page, verdict

    work = work_of(values)
    file = Path(values.calibration) if values.calibration else None
    machine = Machine(
        memory=_memory(values),
        gpus=values.n,
        kind=values.gpu_type,
        factors=factors_for(file, work.model, values.gpu_type),
    )
    checkpoint = {"auto": None, "on": True, "off": False}[values.checkpointing]
    found = plan(work, machine, placement=_named(values.placement), shards=_named(values.shards), checkpoint=checkpoint)
    print(json.dumps(as_json(found), indent=2) if values.json else "\n".join(page(found)))
    if not found.fits:
        sys.stdout.flush()
        raise UsageError(verdict(found))
    if values.probe:
        _probe(found, values)
    return 0


def _memory(values: argparse.Namespace) -> float:
    """Bytes of one GPU: those named, else the seed's, else (to be measured) of the one here."""
    if values.gpu or not values.probe:
        return parse_size(values.gpu or _SEED_GPU)
    from r2v.memory.probe import memory_here

    return memory_here()


def _probe(found: Any, values: argparse.Namespace) -> None:
    from r2v.memory.calibration import Calibration, keep
    from r2v.memory.probe import factors_of, key_of, probe
    from r2v.memory.sizes import gib

    key, probed = key_of(found), []
    for one in probe(found):
        probed.append(one)
        print(
            f"  {one.phase}: {one.rows} rows, planned {gib(one.need.total)} GiB, measured {gib(one.measured)} GiB "
            f"({100 * (one.measured / one.need.total - 1):+.1f} %), factor {one.factor:.3f}",
            file=sys.stderr,
        )
    keep(Path(values.probe), Calibration(key=key, factors=factors_of(probed)))
    print(f"kept for {key.gpu} with torch {key.torch}: r2v plan ... --calibration {values.probe}", file=sys.stderr)


def _named(word: str) -> Any:
    return None if word == "auto" else word


def work_of(values: argparse.Namespace) -> Any:
    """The `Work` that the options describe: the configuration where one is given, then flags. Without one, three
    roles on a base with adapters, as large as the seed's."""
    from r2v.config import load
    from r2v.memory.configured import work_of_stage
    from r2v.memory.planner.work import Work
    from r2v.memory.shapes import shape_of

    config = load(values.config, values.overrides)
    named = values.model or config.policy.model_name
    configured = values.config is not None or values.overrides or values.stage != "hierarchical"
    work = (
        work_of_stage(config, values.stage)
        if configured
        else Work(
            stage=values.stage,
            model=shape_of(named),
            critic=shape_of(_SEED_CRITIC),
            value=values.lora_r == 0 and values.baseline == "auto",
        )
    )
    return replace(work, **_flags(values))


def _flags(values: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `Work` that flags set."""
    from r2v.memory.shapes import shape_of

    found = {field: getattr(values, flag) for field, flag in _FIELDS.items() if getattr(values, flag) is not None}
    if values.model:
        found["model"] = shape_of(values.model)
    if values.critic and values.stage == "hierarchical":
        found["critic"] = shape_of(values.critic)
        if not found["critic"].encoder:
            raise UsageError(f"--critic {values.critic}: a decoder; name an encoder such as {_SEED_CRITIC}")
    if values.baseline != "auto":
        found["value"] = values.baseline == "value"
    return found
