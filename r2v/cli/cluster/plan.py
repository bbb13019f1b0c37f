"""`r2v plan`: the memory that a stage needs on a GPU, the micro-batches that fit, and its time, before it is asked for.

r2v plan --config configs/webarena/noisy.yaml --gpu 80GiB                # all stages, in two tables
r2v plan --config configs/webarena/noisy.yaml --gpu 80GiB --gpus 4 --gpu-type h100 --cpus 32 --helpers 0
r2v plan --stage evaluate --config configs/webarena/noisy.yaml --gpu 80GiB
r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --gpus 2
r2v plan --model meta-llama/Llama-3.2-3B --gpu 44.53GiB --gpus 2 --lora-r 0 --precision float32    # refused, exit 2
r2v plan --stage bc --config configs/webarena/noisy.yaml --gpu 80GiB
r2v plan --model meta-llama/Llama-3.2-3B --probe calibration.json       # on a GPU: measured, for --calibration
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from r2v.cli.cluster.plan_options import DEFAULT_CRITIC, TOKENS, add_job, add_measured, add_strategy
from r2v.cli.options import whole
from r2v.cli.renamed import add_renamed
from r2v.constraints import Range
from r2v.errors import UsageError
from r2v.memory.planner.stage_names import ACTING_STAGES, STAGES, WITHOUT_MODEL
from r2v.memory.planner.training_job import TrainingJob
from r2v.memory.sizes import parse_size

if TYPE_CHECKING:
    from r2v.config import Config

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
_GPUS = Range(at_least=1, at_most=100_000)
_DEFAULT_GPU = "44.53GiB"
"""A GPU that is sold as one of 48 GB has about this much."""
_FIELDS = {
    "lora_rank": "lora_r",
    "precision": "precision",
    "four_bit": "four_bit",
    "optimizer": "optimizer",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "critic_tokens": "critic_tokens",
    "episodes": "episodes",
    "hints": "hints",
    "batch": "batch",
}
"""Fields of a `TrainingJob` by the options that set them."""
_ONLY_TRAINING = (
    *("critic", "lora_r", "precision", "four_bit", "optimizer", "prompt_tokens", "completion_tokens", "critic_tokens"),
    *("episodes", "hints", "batch", "baseline", "placement", "shards", "checkpointing", "calibration", "probe"),
)
"""Options that a stage which acts, and the table of all stages, take from the configuration alone."""
_RESOURCES = {"gpus": "gpus", "card": "gpu_type", "cpus": "cpus", "helpers": "helpers"}
"""Fields of `Allotted` by the options that set them in place of the headers."""
_NOT_GIVEN = (None, "auto")
_COUNTS = "counts of episodes, requests and tokens, and what they rest on: r2v run --dry-run"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `plan` to the command line."""
    plan = commands.add_parser(
        "plan",
        help="the GPU memory that a stage needs, and the micro-batches that fit",
        description="Predicts the peak memory of every phase of a stage that trains or acts from a model's "
        "config.json, or of all stages of a configuration in one table, and their time in another, as `r2v run "
        "--dry-run` and `r2v run_all --dry-run` print it. Needs no GPU, no weights and no network, except for --probe.",
    )
    plan.add_argument(
        "--stage",
        choices=[stage for stage in STAGES if stage not in WITHOUT_MODEL],
        help="default: every stage where a configuration is given, else hierarchical",
    )
    plan.add_argument(
        "--config",
        metavar="FILE",
        help="configuration: its policy, training and hierarchical sections (default: all defaults)",
    )
    plan.add_argument(
        "--overrides",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="configuration values that win over the file (default: none)",
    )
    plan.add_argument(
        "--gpu",
        metavar="SIZE",
        help=f"memory of one GPU, such as 80GiB; a number alone is GiB (default: {_DEFAULT_GPU}; --probe: the GPU "
        "here)",
    )
    plan.add_argument(
        "--gpus",
        type=whole(_GPUS),
        metavar="COUNT",
        help="number of GPUs (default: 1; of all stages: as the header of each stage's script asks)",
    )
    plan.add_argument(
        "--gpu-type",
        metavar="NAME",
        help="GPU type in --gres, such as a100 (default: any; of all stages: as the headers ask)",
    )
    plan.add_argument(
        "--cpus", type=whole(_GPUS), metavar="COUNT", help="CPUs of each stage (default: as the headers ask)"
    )
    plan.add_argument(
        "--helpers",
        type=whole(Range(at_least=0, at_most=100_000)),
        metavar="COUNT",
        help="helpers that play at once beside each stage that takes some (default: as the headers ask)",
    )
    add_job(plan)
    add_strategy(plan)
    add_measured(plan)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_renamed(plan, "--n", "--gpus", type=whole(_GPUS))
    add_renamed(plan, "--prompt", "--prompt-tokens", type=whole(TOKENS))
    add_renamed(plan, "--completion", "--completion-tokens", type=whole(TOKENS))
    plan.set_defaults(act=run)


def run(values: argparse.Namespace) -> int:
    """Print the plan, and measure it with --probe. Raises UsageError where nothing fits, or where options contradict
    each other."""
    configured = values.config is not None or bool(values.overrides)
    every = values.stage is None and configured
    for option in ("cpus", "helpers"):
        if getattr(values, option) is not None and not every:
            raise UsageError(f"--{option}: is of the times of all stages; leave --stage out, and name a --config")
    if every or values.stage in ACTING_STAGES:
        return _run_configured(values)
    values.stage = values.stage or "hierarchical"
    return _run_training(values)


def _run_configured(values: argparse.Namespace) -> int:
    """One stage that acts, or the tables of all stages: what the configuration alone decides."""
    from r2v.memory.profile_of_model import configured

    asked = [f"--{option.replace('_', '-')}" for option in _ONLY_TRAINING if getattr(values, option) not in _NOT_GIVEN]
    if asked:
        which = f"--stage {values.stage}" if values.stage else "the table of all stages"
        raise UsageError(f"{asked[0]}: {which} is planned as configured; name a stage that trains, or leave it out")
    overrides = [*values.overrides, *([f"policy.model_name={values.model}"] if values.model else [])]
    config = configured(values.config, overrides)
    lines, found, refusal = _acting_stage(config, values) if values.stage else _all_stages(config, values)
    print(json.dumps(found, indent=2) if values.json else "\n".join(lines))
    if refusal:
        sys.stdout.flush()
        raise UsageError(refusal)
    return 0


def _acting_stage(config: Config, values: argparse.Namespace) -> tuple[list[str], dict[str, Any], str]:
    """Text, JSON values, and the refusal of a stage that does not fit."""
    from r2v.memory.acting_report import acting_json, acting_report, acting_verdict
    from r2v.memory.configured import acting_job
    from r2v.memory.planner.acting import plan_acting

    planned = plan_acting(acting_job(config, values.stage), _machine(values))
    return acting_report(planned), acting_json(planned), "" if planned.fits else acting_verdict(planned)


def _all_stages(config: Config, values: argparse.Namespace) -> tuple[list[str], dict[str, Any], str]:
    """The same of the stages of a configuration, with the time of each."""
    from r2v.memory.stage_table import as_json, plan_stages, stages_report
    from r2v.pipeline.graph import selection
    from r2v.pipeline.plan import dry_run
    from r2v.pipeline.plan.known import known_here
    from r2v.slurm.estimate import planned_by_headers

    given = {field: value for field, option in _RESOURCES.items() if (value := getattr(values, option)) is not None}
    rows, jobs = selection(config)[0], list[dry_run.PlannedWork]()
    machines = {row.name: _machine(values) for row in rows}
    try:
        jobs = planned_by_headers(config, rows, known_here(config), **given)
        times = [*dry_run.time_table(jobs), *dry_run.time_basis(jobs), _COUNTS]
    except UsageError as error:  # the benchmark is not installed here: what fits does not depend on it
        times = [f"no times: {error}"]
    machines |= {one.name: _machine(values, one.allotted.gpus, one.allotted.card) for one in jobs}
    stages = plan_stages(config, machines)
    refused = [stage.stage for stage in stages if stage.plan is not None and not stage.plan.fits]
    found = {"stages": as_json(stages), "fits": not refused, "jobs": [dry_run.as_json(one) for one in jobs]}
    refusal = f"{', '.join(refused)}: more than {values.gpu or _DEFAULT_GPU}; r2v plan --stage NAME says what fits"
    return [*stages_report(config, stages), *times], found, refusal if refused else ""


def _machine(values: argparse.Namespace, gpus: int = 1, kind: str = "") -> Any:
    """GPUs as the options say, else as given."""
    from r2v.memory.planner.training_job import Machine

    return Machine(memory=_memory(values), gpus=values.gpus or max(1, gpus), kind=values.gpu_type or kind)


def _run_training(values: argparse.Namespace) -> int:
    from r2v.memory.calibration import factors_for
    from r2v.memory.planner.planner import plan
    from r2v.memory.report import as_json, report, verdict

    job = training_job(values)
    calibration = Path(values.calibration) if values.calibration else None
    machine = _machine(values)
    machine = replace(machine, factors=factors_for(calibration, job.model, machine.kind))
    planned = plan(
        job,
        machine,
        placement=_unless_auto(values.placement),
        shards=_unless_auto(values.shards),
        checkpoint={"auto": None, "on": True, "off": False}[values.checkpointing],
    )
    print(json.dumps(as_json(planned), indent=2) if values.json else "\n".join(report(planned)))
    if not planned.fits:
        sys.stdout.flush()  # the plan comes before the error line that main prints on stderr
        raise UsageError(verdict(planned))
    if values.probe:
        _probe(planned, values)
    return 0


def _memory(values: argparse.Namespace) -> float:
    """Bytes of one GPU: the size given, else with --probe that of the GPU here, else the default."""
    if values.gpu or not values.probe:
        return parse_size(values.gpu or _DEFAULT_GPU)
    from r2v.memory.probe import memory_here

    return memory_here()


def _probe(plan: Any, values: argparse.Namespace) -> None:
    from r2v.memory.calibration import Calibration, save
    from r2v.memory.probe import factors_of, key_of, probe
    from r2v.memory.sizes import gib

    key, probed = key_of(plan), []
    for phase in probe(plan):
        probed.append(phase)
        print(
            f"  {phase.phase}: micro-batch {phase.micro_batch}, planned {gib(phase.predicted.total)} GiB, measured "
            f"{gib(phase.measured)} GiB ({100 * (phase.measured / phase.predicted.total - 1):+.1f} %), "
            f"factor {phase.factor:.3f}",
            file=sys.stderr,
        )
    save(Path(values.probe), Calibration(key=key, factors=factors_of(probed)))
    print(f"saved for {key.gpu} with torch {key.torch}: r2v plan ... --calibration {values.probe}", file=sys.stderr)


def _unless_auto(choice: str) -> Any:
    return None if choice == "auto" else choice


def training_job(values: argparse.Namespace) -> Any:
    """The `TrainingJob` that the options describe: of the configuration where one is given, with the options over it;
    without one, hierarchical training with adapters and a critic."""
    from r2v.memory.configured import job_of_stage
    from r2v.memory.profile_of_model import configured
    from r2v.memory.shapes import shape_of

    if values.config is not None or values.overrides or values.stage != "hierarchical":
        named = [f"policy.model_name={values.model}"] if values.model else []
        job = job_of_stage(configured(values.config, [*values.overrides, *named]), values.stage)
    else:
        job = TrainingJob(
            stage=values.stage,
            model=shape_of(values.model or "tiny"),
            critic=shape_of(DEFAULT_CRITIC),
            value=values.lora_r == 0 and values.baseline == "auto",
        )
    return replace(job, **_options(values))


def _options(values: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `TrainingJob` that options set."""
    from r2v.memory.shapes import shape_of

    given = {field: getattr(values, option) for field, option in _FIELDS.items() if getattr(values, option) is not None}
    if values.model:
        given["model"] = shape_of(values.model)
    if values.critic and values.stage == "hierarchical":
        given["critic"] = shape_of(values.critic)
        if not given["critic"].encoder:
            raise UsageError(f"--critic {values.critic}: a decoder; name an encoder such as {DEFAULT_CRITIC}")
    if values.baseline != "auto":
        given["value"] = values.baseline == "value"
    return given
