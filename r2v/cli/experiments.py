"""`r2v experiments`: sweeps that resume, run in the background or on Slurm, and compare themselves.

r2v experiments run --exp configs/experiments/lr_sweep_mnist_mlp.yaml --resume --limit 3
r2v experiments background --exp SPEC -- --slots 4 ; r2v experiments background --list ; ... --stop NAME
r2v experiments status ; r2v experiments compare lr_sweep_mnist_mlp ; r2v experiments diff run_003 run_007
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from r2v.cli.options import Parser, add_word, add_words, runs_code, sends_keys, whole
from r2v.constraints import Range
from r2v.errors import InputError, UsageError

_ABOUT = {
    "--show": "simulation: open the plots on the screen as well",
    "--research_only": "simulation: only the plots that a paper would show",
    "--no_confusion": "simulation: no confusion matrices",
    "--advanced": "simulation: the plots of reliability and of every threshold too",
}
FLAGS = tuple(_ABOUT)
"""Handed on to the runs of a simulation as they are typed."""
_RUN_OPTIONS = ("resume", "limit", "slots", "fresh", "lost", "allow_spec_change", "slurm")
"""Options of `run` that are fields of `RunOptions`."""
_COUNT = Range(at_least=1, at_most=100_000)
_EXPERIMENT = "name, folder's name or folder of an experiment (default: the newest)"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `experiments` and its words."""
    about = "run a sweep of configurations, resume it, watch it, compare its results"
    words = add_words(commands, "experiments", about)
    _add_run(words)
    _add_background(words)
    _add_reading(words)
    _add_point(words)


def _add_run(words: Any) -> None:
    run = add_word(words, "run", "run the points of a specification, one after another", _run)
    run.add_argument(
        "--exp", type=Path, required=True, metavar="FILE", help="the specification, in configs/experiments"
    )
    _add_run_options(run)
    sends_keys(run)
    runs_code(run)
    run.add_argument(
        "--dry-run", action="store_true", help="print how many points there are, which, and their cost; run nothing"
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the newest experiment of this name: what is pending or failed (default: a new experiment)",
    )
    parser.add_argument(
        "--limit", type=whole(_COUNT), metavar="N", help="start at most N runs now (default: all of them)"
    )
    parser.add_argument(
        "--slots",
        type=_slots,
        default=1,
        metavar="N",
        help="runs at once; auto: as many as fit into the memory, of GPUs too, measured on the first (default: 1)",
    )
    parser.add_argument(
        "--slurm",
        nargs="?",
        type=whole(_COUNT),
        const=50,
        metavar="N",
        help="submit each point to Slurm, a chain or a job, at most N of them in the queue at once; N left out: 50 "
        "(default: runs work here)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="run points again that another experiment has completed already"
    )
    parser.add_argument(
        "--allow-spec-change", action="store_true", help="with --resume: append the points that the file has now"
    )
    parser.add_argument(
        "--lost", action="store_true", help="with --resume: take runs that other machines had begun for dead"
    )
    _add_flags(parser)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    for flag in FLAGS:
        parser.add_argument(flag, action="store_true", help=_ABOUT[flag])


def _slots(text: str) -> int | str:
    return text if text == "auto" else whole(Range(at_least=1, at_most=1000))(text)


def _add_background(words: Any) -> None:
    about = "start an experiment, or any command, that outlives this terminal; list and stop them"
    parser = add_word(words, "background", about, _background)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print every run in the background and its state")
    what.add_argument(
        "--stop",
        metavar="RUN",
        help="end a run and all that it started: by its id, its experiment's name, or either's folder (default: none)",
    )
    what.add_argument(
        "--experiment", "--exp", type=Path, metavar="FILE", help="the specification to run (default: none)"
    )
    parser.add_argument(
        "--mode", choices=("training", "simulation"), help="the mode that the specification must have (default: any)"
    )
    parser.add_argument("--name", metavar="NAME", help="what a command is listed as (default: its program)")
    _add_flags(parser)
    sends_keys(parser)
    parser.add_argument(
        "command",
        nargs="*",
        metavar="-- WORDS",
        help="with --experiment: options of `experiments run`, behind --; without: a command line of your own",
    )


def _add_reading(words: Any) -> None:
    add_word(words, "list", "print the experiments of this project, the newest last", _list)
    status = add_word(words, "status", "print the runs of an experiment and how far each is", _status)
    status.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)

    compare = add_word(words, "compare", "compare an experiment's settings: table, CSV, LaTeX and a plot", _compare)
    compare.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)
    compare.add_argument("--metric", metavar="NAME", help="figure to compare by (default: the specification's)")
    compare.add_argument(
        "--reference", metavar="RUN", help="a run of the setting that the others are tested against (default: the best)"
    )
    about = "cancel what an experiment has in Slurm's queue; its runs are pending again"
    cancel = add_word(words, "cancel", about, _cancel)
    cancel.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)
    diff = add_word(words, "diff", "print the keys and figures in which two runs differ", _diff)
    diff.add_argument("runs", nargs=2, metavar="RUN", help="two runs, such as run_003 run_007")
    diff.add_argument("--experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    replay = add_word(words, "replay", "take every decision of early stopping again", _replay)
    replay.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)


def _add_point(words: Any) -> None:
    about = "what a run of a simulation executes: routing replayed over recorded steps"
    simulate = add_word(words, "simulate", about, _simulate)
    _add_point_files(simulate)
    _add_flags(simulate)
    point = add_word(words, "point", "what a run of an experiment over a stage executes", _point)
    _add_point_files(point)
    sends_keys(point)
    runs_code(point)
    point.add_argument("stage", metavar="STAGE", help="the stage to make, with all that it needs")


def _add_point_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="FILE", help="the point's resolved configuration")
    parser.add_argument("run_dir", type=Path, metavar="DIR", help="where its figures go")


def _flags(values: argparse.Namespace) -> tuple[str, ...]:
    return tuple(flag for flag in FLAGS if getattr(values, flag.removeprefix("--")))


def _run(values: argparse.Namespace) -> int:
    from r2v.experiments.schedule.opening import RunOptions
    from r2v.experiments.schedule.orchestrator import run_experiment

    if values.dry_run:
        from r2v.experiments.dry_run import dry_run_lines
        from r2v.experiments.specification.expansion import expand
        from r2v.experiments.specification.spec import read_spec

        spec = read_spec(values.exp)
        print("\n".join(dry_run_lines(spec, expand(spec))))
        return 0
    options = RunOptions(flags=_flags(values), **{name: getattr(values, name) for name in _RUN_OPTIONS})
    if values.slurm is not None and values.slots != 1:
        raise UsageError(f"--slots {values.slots}: is of runs that work here; --slurm N says how many may be queued")
    run_experiment(values.exp, options)
    return 0


def _background(values: argparse.Namespace) -> int:
    from r2v.experiments.schedule import background
    from r2v.experiments.schedule.slurm_runs import cancel_newest

    if values.list:
        print("\n".join(background.lines()))
        return 0
    if values.stop is not None:
        run = background.named(values.stop)
        print(f"{run.id}: {'stopped' if background.stop(run) else f'had ended already ({run.state})'}")
        if run.spec is not None and (count := cancel_newest(run.name)):
            print(f"{run.name}: {count} runs cancelled in Slurm's queue")
        return 0
    if values.experiment is not None:
        launched = _launch_experiment(values)
    elif values.command:
        launched = background.launch(values.command, name=values.name or Path(values.command[0]).stem)
    else:
        raise UsageError("background needs --experiment FILE, --list, --stop RUN, or -- and a command")
    print(f"{launched.id}: started (pid {launched.owner.pid}); tail -f {launched.folder / background.NOHUP_LOG}")
    return 0


def _launch_experiment(values: argparse.Namespace) -> Any:
    """Check the specification here, where its errors are seen, and start it."""
    from r2v.experiments.schedule import background
    from r2v.experiments.specification.expansion import expand
    from r2v.experiments.specification.spec import read_spec
    from r2v.llm.providers.keys import allowed_words

    spec = read_spec(values.experiment)
    if values.mode not in (None, spec.mode):
        raise UsageError(f"{spec.path} is of mode {spec.mode}, not {values.mode}; type {spec.mode}, or nothing")
    if spec.mode != "simulation" and _flags(values):
        raise UsageError(f"{_flags(values)[0]}: is for mode: simulation; {spec.name} is mode: {spec.mode}")
    expand(spec)
    options = Parser(prog="r2v experiments run")
    _add_run_options(options)
    options.parse_args(values.command)
    words = [sys.executable, "-m", "r2v", "experiments", "run", "--exp", str(spec.path), *_flags(values)]
    return background.launch([*words, *values.command, *allowed_words()], name=spec.name, spec=spec.path)


def _list(values: argparse.Namespace) -> int:
    from r2v.experiments.views import list_lines

    print("\n".join(list_lines()))
    return 0


def _status(values: argparse.Namespace) -> int:
    from r2v.experiments.records import chosen
    from r2v.experiments.views import status_lines

    print("\n".join(status_lines(chosen(values.experiment))))
    return 0


def _compare(values: argparse.Namespace) -> int:
    from r2v.experiments.compare import compare, comparison_lines, write_comparison
    from r2v.experiments.records import chosen

    folder = chosen(values.experiment)
    found = compare(folder, values.metric, values.reference)
    print("\n".join(comparison_lines(found)))
    print("\n".join(str(path) for path in write_comparison(folder / "comparison", found)))
    return 0


def _cancel(values: argparse.Namespace) -> int:
    from r2v.experiments.records import chosen
    from r2v.experiments.schedule.slurm_runs import cancel_runs

    folder = chosen(values.experiment)
    print(f"{folder}: {cancel_runs(folder)} runs cancelled")
    return 0


def _diff(values: argparse.Namespace) -> int:
    from r2v.experiments.compare import difference_lines
    from r2v.experiments.records import chosen

    print("\n".join(difference_lines(chosen(values.experiment), *values.runs)))
    return 0


def _replay(values: argparse.Namespace) -> int:
    from r2v.experiments.records import SPEC_COPY, chosen
    from r2v.experiments.schedule.asha import replayed
    from r2v.experiments.specification.spec import read_spec

    folder = chosen(values.experiment)
    spec = read_spec(folder / SPEC_COPY)
    if spec.asha is None:
        raise UsageError(f"{folder}: has no early stopping, so no decisions; its specification says nothing of asha")
    count, wrong = replayed(folder, spec.asha.eta, spec.goal)
    for one in wrong:
        print(f"{one.point} went on from rung {one.rung}, which its figures do not say")
    if wrong:
        raise InputError(f"{folder}: {len(wrong)} of {count} decisions come out otherwise; their file was altered")
    print(f"{folder}: {count} decisions, all as they were taken")
    return 0


def _simulate(values: argparse.Namespace) -> int:
    from r2v.experiments.simulation import SimulationFlags, simulate

    names = (flag.removeprefix("--") for flag in FLAGS)
    simulate(values.config, values.run_dir, SimulationFlags(**{name: getattr(values, name) for name in names}))
    return 0


def _point(values: argparse.Namespace) -> int:
    from r2v.experiments.point import run_point

    run_point(values.config, values.run_dir, values.stage)
    return 0
