"""`r2v plan`: a stage's GPU memory, the micro-batches that fit, and its time, before it is submitted.

r2v plan --config configs/webarena/noisy.yaml --gpu 80GiB                # all stages, in two tables
r2v plan --config configs/webarena/noisy.yaml --gpu 80GiB --gpus 4 --gpu-type h100 --cpus 32 --helpers 0
r2v plan --stage evaluate --config configs/webarena/noisy.yaml --gpu 80GiB
r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --gpus 2         # hierarchical training
r2v plan --model meta-llama/Llama-3.2-3B --overrides policy.lora_r=0 policy.dtype=float32   # refused, exit 2
r2v plan --stage bc --config configs/webarena/noisy.yaml --gpu 80GiB
r2v plan --model meta-llama/Llama-3.2-3B --probe calibration.json        # on a GPU: measured, for --calibration
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from r2v.cli.options import Parser, add_overrides, add_word, whole
from r2v.constraints import Range
from r2v.errors import UsageError
from r2v.memory.planner.training_job import StageName
from r2v.memory.sizes import parse_size
from r2v.pipeline.jobs import JOBS, TRAIN_HIERARCHICAL, job

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.memory.planner.phases import Lookup
    from r2v.memory.store import Measure

_GPUS = Range(at_least=1, at_most=100_000)
_DEFAULT_GPU = "44.53GiB"
"""Usable memory of a GPU sold as 48 GB."""
_CRITIC = "FacebookAI/roberta-base"
"""The backbone of ArCHer's critic (arXiv 2402.19446)."""
_RESOURCES = {"gpus": "gpus", "card": "gpu_type", "cpus": "cpus", "helpers": "helpers"}
"""Fields of `Allotted` -> options that override the headers."""
_COUNTS = "counts of episodes, requests and tokens, and what they rest on: r2v run --dry-run"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `plan` to the command line."""
    about = "the GPU memory that a stage needs, and the micro-batches that fit"
    more = (
        "For all stages of a configuration it prints a table of peak memory and one of times, as in `r2v run "
        "--dry-run`. Sizes without a stored measurement are measured once on tensors without data: no GPU, weights or "
        "network, except for --probe."
    )
    plan = add_word(commands, "plan", about, run, more=more)
    plan.add_argument(
        "--stage",
        choices=[row.name for row in JOBS if row.memory],
        help="the stage to plan (default: every stage if a configuration is given, else hierarchical)",
    )
    plan.add_argument("--config", metavar="FILE", help="configuration (default: all defaults)")
    add_overrides(
        plan, "configuration values that win over the file, such as policy.lora_r=0 or hierarchical.placement=full"
    )
    plan.add_argument(
        "--model",
        metavar="NAME",
        help="tiny, a directory with a config.json, or a hub name (default: policy.model_name)",
    )
    plan.add_argument(
        "--gpu",
        metavar="SIZE",
        help=f"memory of one GPU, such as 80GiB; a bare number is GiB (default: {_DEFAULT_GPU}; with --probe: this "
        "machine's GPU)",
    )
    plan.add_argument(
        "--gpus",
        type=whole(_GPUS),
        metavar="COUNT",
        help="number of GPUs (default: 1; for all stages: by the headers of their scripts)",
    )
    plan.add_argument(
        "--gpu-type",
        metavar="NAME",
        help="GPU type in --gres, such as a100 (default: any; for all stages: by the headers)",
    )
    plan.add_argument("--cpus", type=whole(_GPUS), metavar="COUNT", help="CPUs of each stage (default: by the headers)")
    plan.add_argument(
        "--helpers",
        type=whole(Range(at_least=0, at_most=100_000)),
        metavar="COUNT",
        help="concurrent helpers of each stage that can use them (default: by the headers)",
    )
    measured = plan.add_mutually_exclusive_group()
    measured.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="use the factors measured by --probe on this GPU (--gpu-type; default: none)",
    )
    measured.add_argument(
        "--probe",
        type=Path,
        metavar="FILE",
        help="measure each phase on this machine's GPU, with random weights, and save the factors for --calibration "
        "(default: plan only)",
    )
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(values: argparse.Namespace) -> int:
    """Print the plan, and measure it with --probe. Raises UsageError if nothing fits, or for contradictory options."""
    configured = values.config is not None or bool(values.overrides)
    every = values.stage is None and configured
    for option in ("cpus", "helpers"):
        if getattr(values, option) is not None and not every:
            raise UsageError(f"--{option}: is for the times of all stages; leave --stage out, and name a --config")
    values.stage = values.stage or (None if every else "hierarchical")
    trains = values.stage in get_args(StageName)
    for option in ("calibration", "probe"):
        if getattr(values, option) is not None and not trains:
            raise UsageError(f"--{option}: is for a training stage; name one with --stage")
    return _run_stage(values) if values.stage else _run_all_stages(values)


@contextmanager
def _lookup() -> Iterator[tuple[Measure, Lookup]]:
    """Yield the measuring function, which uses a child process, and the lookup that reads stored measurements first."""
    from r2v.memory.store import Measuring, measurement

    with Measuring() as measure:
        yield measure, partial(measurement, measure=measure)


def _config(values: argparse.Namespace) -> Config:
    from r2v.memory.profile_of_model import configured

    return configured(values.config, _overrides(values))


def _overrides(values: argparse.Namespace) -> list[str]:
    return [*values.overrides, *([f"policy.model_name={values.model}"] if values.model else [])]


def _run_all_stages(values: argparse.Namespace) -> int:
    """Print the tables of memory and time of all stages of a configuration."""
    from r2v.memory.report import plan_stages, stages_as_json, stages_report
    from r2v.pipeline.graph import selection
    from r2v.pipeline.plan import dry_run
    from r2v.pipeline.plan.benchmark_facts import facts_here
    from r2v.slurm.estimate import planned_by_headers

    config = _config(values)
    given = {field: value for field, option in _RESOURCES.items() if (value := getattr(values, option)) is not None}
    rows, jobs = selection(config)[0], list[dry_run.PlannedWork]()
    machines = {row.name: _machine(values) for row in rows}
    try:
        jobs = planned_by_headers(config, rows, facts_here(config), **given)
        times = [*dry_run.time_table(jobs), *dry_run.time_basis(jobs), _COUNTS]
    except UsageError as error:  # without the benchmark installed, the memory plan still holds
        times = [f"no times: {error}"]
    machines |= {item.name: _machine(values, item.allotted.gpus, item.allotted.card) for item in jobs}
    with _lookup() as (measure, lookup):
        code = {row.name: row.memory for row in rows}
        stages = plan_stages(
            config, {name: (code[name], machine) for name, machine in machines.items()}, measure, lookup
        )
        report = stages_report(config, stages)
    refused = [stage.stage for stage in stages if not stage.fits]
    as_values = {
        "stages": stages_as_json(stages),
        "fits": not refused,
        "jobs": [dry_run.as_json(item) for item in jobs],
    }
    refusal = f"{', '.join(refused)}: more than {values.gpu or _DEFAULT_GPU}; r2v plan --stage NAME says what fits"
    _print(values, [*report, *times], as_values, refusal if refused else "")
    return 0


def _print(values: argparse.Namespace, lines: list[str], as_values: dict[str, Any], refusal: str) -> None:
    """Print lines, or JSON values. Then raise UsageError with the refusal, if there is one."""
    print(json.dumps(as_values, indent=2) if values.json else "\n".join(lines))
    if refusal:
        sys.stdout.flush()  # the plan comes before the error line that main prints on stderr
        raise UsageError(refusal)


def _machine(values: argparse.Namespace, gpus: int = 1, kind: str = "") -> Any:
    """Return the GPUs of the options, or else `gpus` of `kind`."""
    from r2v.memory.planner.training_job import Machine

    return Machine(memory=_memory(values), gpus=values.gpus or max(1, gpus), kind=values.gpu_type or kind)


def _run_stage(values: argparse.Namespace) -> int:
    """Print the plan of one stage, measured with --probe."""
    from r2v.memory.configured import acting_job
    from r2v.memory.planner.acting import plan_acting
    from r2v.memory.report import as_json, report, verdict

    with _lookup() as (measure, lookup):
        if values.stage in get_args(StageName):
            planned = _plan_training(values, measure, lookup)
        else:
            acting = acting_job(_config(values), values.stage, job(values.stage).memory, measure)
            planned = plan_acting(acting, _machine(values), lookup)
        _print(values, report(planned), as_json(planned), "" if planned.fits else verdict(planned))
        if values.probe:
            _probe(planned, values)
    return 0


def _plan_training(values: argparse.Namespace, measure: Measure, lookup: Lookup) -> Any:
    from r2v.memory.on_device.calibration import factors_for
    from r2v.memory.planner.planner import plan

    training, machine = training_job(values, measure), _machine(values)
    machine = replace(machine, factors=factors_for(values.calibration, training.model, machine.kind))
    return plan(training, machine, lookup, **_fixed_parts(values))


def training_job(values: argparse.Namespace, measure: Measure | None = None) -> Any:
    """Return the `TrainingJob` of a stage by its configuration; without one, hierarchical training with adapters and a
    critic. Raises as `job_of_stage` does."""
    from r2v.memory.configured import job_of_stage
    from r2v.memory.models import known_model
    from r2v.memory.planner.training_job import TrainingJob

    code = job(values.stage).memory
    if values.config is not None or values.overrides or job(values.stage).command is not TRAIN_HIERARCHICAL:
        return job_of_stage(_config(values), values.stage, code, measure)
    return TrainingJob(
        stage=values.stage,
        code=code,
        model=known_model(values.model or "tiny", measure),
        critic=known_model(_CRITIC, measure),
    )


def _fixed_parts(values: argparse.Namespace) -> dict[str, Any]:
    """Return the parts of the strategy that the configuration sets; the planner chooses the others."""
    from r2v.config import assigned_keys

    if job(values.stage).command is not TRAIN_HIERARCHICAL or not (values.config or values.overrides):
        return {}
    given, h = assigned_keys(values.config, values.overrides), _config(values).hierarchical
    return {
        "placement": None if h.placement == "auto" else h.placement,
        "shards": h.shards if "hierarchical.shards" in given else None,
        "checkpoint": h.gradient_checkpointing,
        "offload": h.offload if "hierarchical.offload" in given else None,
    }


def _memory(values: argparse.Namespace) -> float:
    """Return the bytes of one GPU: --gpu, or with --probe this machine's GPU, or the default."""
    if values.gpu or not values.probe:
        return parse_size(values.gpu or _DEFAULT_GPU)
    from r2v.memory.on_device.probe import memory_here

    return memory_here()


def _probe(plan: Any, values: argparse.Namespace) -> None:
    from r2v.memory.on_device.calibration import save
    from r2v.memory.on_device.probe import calibration_here, factors_of, probe
    from r2v.memory.sizes import gib

    here, probed = calibration_here(plan), []
    for phase in probe(plan):
        probed.append(phase)
        print(
            f"  {phase.phase}: micro-batch {phase.micro_batch}, planned {gib(phase.predicted)} GiB, measured "
            f"{gib(phase.measured)} GiB ({100 * (phase.measured / phase.predicted - 1):+.1f} %), "
            f"factor {phase.factor:.3f}",
            file=sys.stderr,
        )
    save(values.probe, replace(here, factors=factors_of(probed)))
    print(f"saved for {here.gpu} with torch {here.torch}: r2v plan ... --calibration {values.probe}", file=sys.stderr)
