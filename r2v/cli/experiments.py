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

from r2v.cli.options import Parser, add_word, add_words, whole
from r2v.errors import InputError, UsageError

_ABOUT = {
    "--show": "simulation: open the plots on the screen as well",
    "--research_only": "simulation: only the plots that a paper would show",
    "--no_confusion": "simulation: no confusion matrices",
    "--advanced": "simulation: the plots of reliability and of every threshold too",
}
FLAGS = tuple(_ABOUT)
"""Flags passed on to the runs of a simulation."""
_RUN_OPTIONS = ("resume", "limit", "slots", "fresh", "lost", "allow_spec_change", "slurm")
"""Options of `run` that are fields of `RunOptions`."""
_EXPERIMENT = "name, folder's name or folder of an experiment (default: the newest)"


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `experiments` and its subcommands."""
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
    run.set_defaults(sends_keys=True, runs_code=True)
    run.add_argument(
        "--dry-run", action="store_true", help="print the points, their number and their cost; run nothing"
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume the pending and failed runs of the newest experiment of this name (default: a new experiment)",
    )
    parser.add_argument(
        "--limit", type=whole(1, 100_000), metavar="N", help="start at most N runs now (default: all of them)"
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
        type=whole(1, 100_000),
        const=50,
        metavar="N",
        help="submit each point to Slurm, as a chain or a job, at most N of them in the queue at once; without N: 50 "
        "(default: run on this machine)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="run points again even if another experiment has completed them"
    )
    parser.add_argument(
        "--allow-spec-change", action="store_true", help="with --resume: append the points added to the file since"
    )
    parser.add_argument(
        "--lost", action="store_true", help="with --resume: treat runs that other machines started as dead"
    )
    _add_flags(parser)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    for flag in FLAGS:
        parser.add_argument(flag, action="store_true", help=_ABOUT[flag])


def _slots(text: str) -> int | str:
    return text if text == "auto" else whole(1, 1000)(text)


def _add_background(words: Any) -> None:
    about = "start an experiment, or any command, that outlives this terminal; list and stop them"
    parser = add_word(words, "background", about, _background)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="print every run in the background and its state")
    action.add_argument(
        "--stop",
        metavar="RUN",
        help="end a run and its child processes: by its id, its experiment's name, or either's folder (default: none)",
    )
    action.add_argument(
        "--experiment", "--exp", type=Path, metavar="FILE", help="the specification to run (default: none)"
    )
    parser.add_argument(
        "--mode", choices=("training", "simulation"), help="the mode that the specification must have (default: any)"
    )
    parser.add_argument("--name", metavar="NAME", help="name of a command in the list (default: its program)")
    _add_flags(parser)
    parser.set_defaults(sends_keys=True)
    parser.add_argument(
        "command",
        nargs="*",
        metavar="-- WORDS",
        help="with --experiment: options of `experiments run`, behind --; without: a command line of your own",
    )


def _add_reading(words: Any) -> None:
    add_word(words, "list", "print the experiments of this project, the newest last", _list)
    status = add_word(words, "status", "print the runs of an experiment and their progress", _status)
    status.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)

    compare = add_word(words, "compare", "compare an experiment's settings: table, CSV, LaTeX and a plot", _compare)
    compare.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)
    compare.add_argument("--metric", metavar="NAME", help="figure to compare by (default: the specification's)")
    compare.add_argument(
        "--reference", metavar="RUN", help="a run of the reference setting of the tests (default: the best)"
    )
    about = "cancel an experiment's jobs in Slurm's queue; its runs are pending again"
    cancel = add_word(words, "cancel", about, _cancel)
    cancel.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)
    diff = add_word(words, "diff", "print the keys and figures in which two runs differ", _diff)
    diff.add_argument("runs", nargs=2, metavar="RUN", help="two runs, such as run_003 run_007")
    diff.add_argument("--experiment", metavar="EXPERIMENT", help=_EXPERIMENT)
    replay = add_word(words, "replay", "take every decision of early stopping again", _replay)
    replay.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help=_EXPERIMENT)


def _add_point(words: Any) -> None:
    about = "execute one run of a simulation: routing replayed over recorded steps"
    simulate = add_word(words, "simulate", about, _simulate)
    _add_point_files(simulate)
    _add_flags(simulate)
    point = add_word(words, "point", "execute one run of an experiment over a stage", _point)
    _add_point_files(point)
    point.set_defaults(sends_keys=True, runs_code=True)
    point.add_argument("stage", metavar="STAGE", help="the stage to make, with everything it depends on")


def _add_point_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="FILE", help="the point's resolved configuration")
    parser.add_argument("run_dir", type=Path, metavar="DIR", help="folder of its figures")


def _flags(values: argparse.Namespace) -> tuple[str, ...]:
    return tuple(flag for flag in FLAGS if getattr(values, flag.removeprefix("--")))


def _run(values: argparse.Namespace) -> None:
    from r2v.experiments.schedule.opening import RunOptions
    from r2v.experiments.schedule.orchestrator import run_experiment

    if values.dry_run:
        from r2v.experiments.dry_run import dry_run_lines
        from r2v.experiments.specification.expansion import expand
        from r2v.experiments.specification.spec import read_spec

        spec = read_spec(values.exp)
        print("\n".join(dry_run_lines(spec, expand(spec))))
        return
    options = RunOptions(flags=_flags(values), **{name: getattr(values, name) for name in _RUN_OPTIONS})
    if values.slurm is not None and values.slots != 1:
        raise UsageError(f"--slots {values.slots}: is for runs on this machine; --slurm N limits the jobs in the queue")
    run_experiment(values.exp, options)


def _background(values: argparse.Namespace) -> None:
    from r2v.experiments.schedule import background
    from r2v.experiments.schedule.slurm_runs import cancel_newest

    if values.list:
        return print("\n".join(background.lines()))
    if values.stop is not None:
        run = background.named(values.stop)
        print(f"{run.id}: {'stopped' if background.stop(run) else f'had ended already ({run.state})'}")
        if run.spec is not None and (count := cancel_newest(run.name)):
            print(f"{run.name}: {count} runs cancelled in Slurm's queue")
        return
    if values.experiment is not None:
        launched = _launch_experiment(values)
    elif values.command:
        launched = background.launch(values.command, name=values.name or Path(values.command[0]).stem)
    else:
        raise UsageError("background needs --experiment FILE, --list, --stop RUN, or -- and a command")
    print(f"{launched.id}: started (pid {launched.owner.pid}); tail -f {launched.folder / background.NOHUP_LOG}")


def _launch_experiment(values: argparse.Namespace) -> Any:
    """Check the specification in the foreground, so that its errors are visible, and start it."""
    from r2v.experiments.schedule import background
    from r2v.experiments.specification.expansion import expand
    from r2v.experiments.specification.spec import read_spec
    from r2v.llm.providers.keys import allowed_words

    spec = read_spec(values.experiment)
    if values.mode not in (None, spec.mode):
        raise UsageError(
            f"{spec.path} is of mode {spec.mode}, not {values.mode}; type --mode {spec.mode}, or leave it out"
        )
    if spec.mode != "simulation" and _flags(values):
        raise UsageError(f"{_flags(values)[0]}: is for mode: simulation; {spec.name} is mode: {spec.mode}")
    expand(spec)
    options = Parser(prog="r2v experiments run")
    _add_run_options(options)
    options.parse_args(values.command)
    words = [sys.executable, "-m", "r2v", "experiments", "run", "--exp", str(spec.path), *_flags(values)]
    return background.launch([*words, *values.command, *allowed_words()], name=spec.name, spec=spec.path)


def _list(values: argparse.Namespace) -> None:
    from r2v.experiments.views import list_lines

    print("\n".join(list_lines()))


def _status(values: argparse.Namespace) -> None:
    from r2v.experiments.records import chosen
    from r2v.experiments.views import status_lines

    print("\n".join(status_lines(chosen(values.experiment))))


def _compare(values: argparse.Namespace) -> None:
    from r2v.experiments.compare import compare, comparison_lines, write_comparison
    from r2v.experiments.records import chosen

    folder = chosen(values.experiment)
    comparison = compare(folder, values.metric, values.reference)
    print("\n".join(comparison_lines(comparison)))
    print("\n".join(str(path) for path in write_comparison(folder / "comparison", comparison)))


def _cancel(values: argparse.Namespace) -> None:
    from r2v.experiments.records import chosen
    from r2v.experiments.schedule.slurm_runs import cancel_runs

    folder = chosen(values.experiment)
    print(f"{folder}: {cancel_runs(folder)} runs cancelled")


def _diff(values: argparse.Namespace) -> None:
    from r2v.experiments.compare import difference_lines
    from r2v.experiments.records import chosen

    print("\n".join(difference_lines(chosen(values.experiment), *values.runs)))


def _replay(values: argparse.Namespace) -> None:
    from r2v.experiments.records import SPEC_COPY, chosen
    from r2v.experiments.schedule.asha import replayed
    from r2v.experiments.specification.spec import read_spec

    folder = chosen(values.experiment)
    spec = read_spec(folder / SPEC_COPY)
    if spec.asha is None:
        raise UsageError(f"{folder}: has no early stopping, so no decisions; its specification says nothing of asha")
    count, wrong = replayed(folder, spec.asha.eta, spec.goal)
    for promotion in wrong:
        print(f"{promotion.point} went on from rung {promotion.rung}, which its figures do not say")
    if wrong:
        raise InputError(f"{folder}: {len(wrong)} of {count} decisions come out otherwise; their file was altered")
    print(f"{folder}: {count} decisions, all as they were taken")


def _simulate(values: argparse.Namespace) -> None:
    from r2v.experiments.simulation import SimulationFlags, simulate

    names = (flag.removeprefix("--") for flag in FLAGS)
    simulate(values.config, values.run_dir, SimulationFlags(**{name: getattr(values, name) for name in names}))


def _point(values: argparse.Namespace) -> None:
    from r2v.experiments.point import run_point

    run_point(values.config, values.run_dir, values.stage)
