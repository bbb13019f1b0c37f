"""`r2v <command>`: the one door. Scripts, Slurm jobs and `make` all come through here.

A flag is another spelling of a configuration key (`--num-episodes 50` is `--overrides data.num_episodes=50`).
Errors become one line on stderr and a documented exit code:

    0 ok   2 usage or config   3 bad or incomplete input   4 empty result   5 environment or provider failure
    6 another process works on the same thing   75 interrupted, run again to continue
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from r2v import __version__
from r2v.cli import game, providers
from r2v.cli import plan as memory
from r2v.cli.cluster import add_commands
from r2v.errors import DISK_REFUSES, EnvironmentFault, InputError, Interrupted, R2VError, UsageError, nearest
from r2v.log import logger, setup
from r2v.signals import interrupt_on_stop
from r2v.storage.record import recording

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.storage.artifact import Artifact


@dataclass(frozen=True)
class Alias:
    """A flag that stands for a configuration key."""

    flag: str
    key: str
    many: bool = False


@dataclass(frozen=True)
class StageCommand:
    """A command that runs one job of the pipeline (or the phases of one)."""

    name: str
    jobs: tuple[str, ...]
    help: str
    aliases: tuple[Alias, ...] = ()


_POLICY_JOBS = ("bc", "candidates", "preference")
STAGES = (
    StageCommand(
        "collect",
        ("collect",),
        "the teacher plays training tasks into a versioned run",
        (
            Alias("--num-episodes", "data.num_episodes"),
            Alias("--seeds", "data.seeds", True),
            Alias("--run-id", "run.id"),
            Alias("--run-tags", "run.tags", True),
            Alias("--notes", "run.notes"),
        ),
    ),
    StageCommand(
        "perturb",
        ("perturb",),
        "runs become noisy training trajectories",
        (Alias("--seeds", "data.perturbation_seeds.train", True), Alias("--runs", "data.runs", True)),
    ),
    StageCommand("train_policy", _POLICY_JOBS, "distil the small policy: bc, then preference"),
    StageCommand("train_verifier", ("verifier",), "train the step-level verifier"),
    StageCommand(
        "generate_candidates",
        ("candidates",),
        "sample, execute and score K actions per state",
        (Alias("--K", "candidates.num_samples"),),
    ),
    StageCommand("generate_router_features", ("router_features",), "roll the policy out and branch to the LLM"),
    StageCommand("train_router", ("router",), "fit the router on executed gains"),
    StageCommand(
        "evaluate",
        ("evaluate",),
        "play every method and write the tables",
        (
            Alias("--seeds", "evaluation.seeds", True),
            Alias("--methods", "evaluation.methods", True),
            Alias("--conditions", "evaluation.conditions", True),
            Alias("--num-tasks", "evaluation.num_tasks"),
        ),
    ),
    StageCommand(
        "ablations",
        ("ablations",),
        "take parts away, one at a time",
        (Alias("--seeds", "ablations.seeds", True), Alias("--names", "ablations.names", True)),
    ),
    StageCommand("train_hierarchical", ("hierarchical",), "answer, hint, better answer: an actor and its guidance"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(action, f"no {value}; {nearest(str(value), allowed)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    setup()
    try:
        with recording():
            interrupt_on_stop()
            arguments = build_parser().parse_args(list(sys.argv[1:] if argv is None else argv))
            act: Callable[[argparse.Namespace], int] = arguments.act
            return act(arguments)
    except R2VError as error:
        logger.error("r2v: %s", " ".join(str(error).split()))
        return error.exit_code
    except KeyboardInterrupt:
        logger.error("r2v: interrupted; the same command continues where this one stopped")
        return Interrupted.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK_REFUSES:
            raise
        logger.error(
            "r2v: cannot write %s: %s; make room and run the same command again, finished work is kept",
            error.filename or "",
            error.strerror,
        )
        return EnvironmentFault.exit_code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(prog="r2v", description="Distil, verify, route. Start with `make mrp`, or `r2v run --help`.")
    parser.add_argument("--version", action="version", version=f"r2v {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="<command>", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="the whole pipeline in this process, reusing what is up to date")
    _common(run)
    run.add_argument("--from", dest="start", metavar="JOB", help="begin here, with published inputs")
    run.add_argument("--without", nargs="+", default=[], metavar="JOB", help="leave these out")
    run.set_defaults(act=_run)
    for stage in STAGES:
        _add_stage(commands, stage)
    add_commands(commands)
    providers.add_commands(commands)
    memory.add_commands(commands)
    game.add_commands(commands)
    _add_others(commands)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="YAML file; what it leaves out keeps its default")
    parser.add_argument("--overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, help="= --overrides seed=N")
    parser.add_argument("--force", action="store_true", help="do it again although it is up to date")


def _add_stage(commands: argparse._SubParsersAction[_Parser], stage: StageCommand) -> None:
    parser = commands.add_parser(stage.name, help=stage.help, description=stage.help)
    _common(parser)
    for alias in stage.aliases:
        parser.add_argument(
            alias.flag, dest=alias.key, nargs="+" if alias.many else None, help=f"= --overrides {alias.key}=..."
        )
    parser.add_argument(
        "--output",
        type=Path,
        help="base folder of the run"
        if stage.name == "collect"
        else "publish the result here instead of its usual place",
    )
    if stage.name == "collect":
        parser.add_argument("--dry-run", action="store_true", help="print requests, tokens and dollars; ask nothing")
        parser.add_argument(
            "--cancel",
            action="store_true",
            help="stop the provider batches of --run-id, keeping what they have answered",
        )
    if stage.name == "train_policy":
        parser.add_argument("--stage", choices=["bc", "preference", "all"], default="all")
        parser.add_argument("--trajectories", type=Path, help="train on this file instead of the perturbed runs")
        parser.add_argument(
            "--resume", type=Path, metavar="CKPT", help="continue from a checkpoint; needs no other option"
        )
    parser.set_defaults(act=_stage, stage_command=stage)


def _add_others(commands: argparse._SubParsersAction[_Parser]) -> None:
    verify = commands.add_parser("verify-results", help="replay every episode and rebuild every table")
    verify.add_argument("folder", type=Path)
    verify.set_defaults(act=_verify)
    registry = commands.add_parser("registry", help="list the collected runs, or rebuild their index")
    registry.add_argument("what", nargs="?", choices=["list", "rebuild"], default="list")
    registry.set_defaults(act=_registry)
    show = commands.add_parser("config", help="print the resolved configuration")
    _common(show)
    show.set_defaults(act=_config)
    tiny = commands.add_parser("pretrain-tiny", help="make the bundled student's base again, by its recipe")
    tiny.add_argument("--output", type=Path, required=True)
    tiny.add_argument("--seed", type=int, default=0)
    tiny.set_defaults(act=_pretrain_tiny)


def load_config(arguments: argparse.Namespace) -> Config:
    """The configuration that the options describe: file, then flags, then overrides."""
    from r2v.config import load

    values = vars(arguments)
    flags = [f"{key}={_spell(value)}" for key, value in values.items() if "." in key and value is not None]
    if arguments.seed is not None:
        flags.append(f"seed={arguments.seed}")
    return load(arguments.config, [*flags, *arguments.overrides])


def _spell(value: object) -> str:
    words = [word for item in value for word in str(item).split()] if isinstance(value, list) else str(value)
    return json.dumps(words, ensure_ascii=False)


def _run(arguments: argparse.Namespace) -> int:
    from r2v.pipeline.run import JOBS, places_of, run_here
    from r2v.report.console import closing_lines

    config = load_config(arguments)
    force = [job.name for job in JOBS] if arguments.force else []
    done = run_here(config, start=arguments.start, without=arguments.without, force=force)
    if any(one.fresh for one in done):
        logger.info(
            "%d of %d jobs were run, %.0f CPU-s",
            sum(one.fresh for one in done),
            len(done),
            sum(one.cpu_seconds for one in done),
        )
    if done[-1].job not in ("evaluate", "ablations"):
        return 0
    places = places_of(config)
    results = places.output("evaluate")
    print(
        closing_lines(
            results,
            (
                ("tables", results / "structured_results"),
                ("episodes", results / "episodes"),
                ("ablations", places.output("ablations") / "structured_results"),
                ("models", places.output("bc").parent),
                ("runs", places.runs),
            ),
        )
    )
    return 0


def _stage(arguments: argparse.Namespace) -> int:
    from r2v.pipeline.run import as_asked, job, published, run_job
    from r2v.storage.artifact import external

    stage: StageCommand = arguments.stage_command
    if stage.name == "train_policy" and arguments.resume:
        return _resume(arguments.resume)
    if stage.name == "collect" and arguments.output:
        arguments.overrides.insert(0, f"run.base={arguments.output}")
    config = load_config(arguments)
    if stage.name == "collect" and (arguments.dry_run or arguments.cancel):
        return _collect_nothing(config, arguments.cancel)
    names, made = _wanted(stage, arguments), dict[str, "Artifact"]()
    if stage.name == "train_policy" and arguments.trajectories:
        made["perturb"] = external(arguments.trajectories)
    for name in names:
        item = as_asked(config, job(name))
        inputs = {n: made[n] if n in made else published(config, n) for n in item.inputs}
        force = arguments.force or name == "collect"
        made[name] = run_job(config, item, inputs, force=force, publish_at=_place(stage, name, arguments)).artifact
    return 0


def _collect_nothing(config: Config, cancelling: bool) -> int:
    from r2v.stages.collect import cancel
    from r2v.stages.collect_estimate import estimate

    print(cancel(config) if cancelling else "\n".join(estimate(config).lines))
    return 0


def _wanted(stage: StageCommand, arguments: argparse.Namespace) -> tuple[str, ...]:
    if stage.name != "train_policy" or arguments.stage == "all":
        return stage.jobs
    return (arguments.stage,)


def _place(stage: StageCommand, job_name: str, arguments: argparse.Namespace) -> Path | None:
    if arguments.output is None or stage.name == "collect":
        return None
    output: Path = arguments.output
    return output / job_name if stage.name == "train_policy" else output


def _resume(checkpoint: Path) -> int:
    from r2v.config import load
    from r2v.pipeline.run import job, run_job
    from r2v.storage.artifact import attempt_of

    if not checkpoint.exists():
        raise InputError(f"--resume {checkpoint}: no such checkpoint")
    folder = checkpoint.resolve().parent
    name, inputs = attempt_of(folder)
    place = checkpoint.absolute().parent
    done = run_job(load(folder / "config.yaml"), job(name), inputs, publish_at=place if place.is_symlink() else None)
    if not done.fresh:
        logger.info("  %s is of a run that was finished; its result stands in %s", checkpoint, done.artifact.folder)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from r2v.evaluation.audit.replay_episodes import verify_results

    print(verify_results(arguments.folder))
    return 0


def _registry(arguments: argparse.Namespace) -> int:
    from r2v.data.registry import DataRegistry

    registry = DataRegistry()
    if arguments.what == "rebuild":
        registry.rebuild()
    print(registry.summary())
    return 0


def _config(arguments: argparse.Namespace) -> int:
    from r2v.config import to_yaml

    print(to_yaml(load_config(arguments)), end="")
    return 0


def _pretrain_tiny(arguments: argparse.Namespace) -> int:
    from r2v.bundled.tiny_pretrain import pretrain

    pretrain(arguments.output, arguments.seed)
    return 0
