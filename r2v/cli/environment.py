"""`r2v check-env`: what is wrong with a benchmark, in sentences."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from r2v.cli.options import Parser, add_allow_env, add_config_options, load_config, runs_code, whole
from r2v.constraints import Range
from r2v.errors import InputError, UsageError
from r2v.extensions import is_dotted
from r2v.log import logger

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.envs.base import Benchmark


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `check-env`."""
    about = "check that a benchmark keeps the contract: declarations, answers, splits, replay, snapshots, expert"
    parser = commands.add_parser(
        "check-env",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Its code is imported and run, and the counts of "
        "its tasks are recorded for dry runs. Exit code 0 without faults, else 2.",
    )
    parser.add_argument(
        "benchmark",
        nargs="?",
        metavar="MODULE:CLASS",
        help="the benchmark to check (default: env.benchmark of the configuration); env.options says how it is built",
    )
    add_config_options(parser)
    add_allow_env(parser)
    runs_code(parser)
    parser.add_argument(
        "--num-tasks",
        type=whole(Range(at_least=1, at_most=10_000)),
        default=3,
        metavar="N",
        help="tasks to play, the first of each split (default: 3)",
    )
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    from r2v.envs.base import benchmark_class, declaration_problem
    from r2v.envs.check import check_benchmark
    from r2v.envs.guard import described

    config = load_config(arguments)
    spec = arguments.benchmark or config.env.benchmark
    made_by = benchmark_class(spec)
    try:
        benchmark = made_by(**config.env.options)
    except Exception as error:  # somebody else's constructor
        raise UsageError(f"{spec}: cannot be made with env.options {config.env.options}: {described(error)}") from error
    if is_dotted(spec) and declaration_problem(benchmark) is None:
        _record(replace(config, env=replace(config.env, benchmark=spec)), benchmark)
    findings = check_benchmark(
        benchmark, num_tasks=arguments.num_tasks, seed=config.seed, max_steps=config.inference.max_steps
    )
    for kind, texts in (("fault", findings.faults), ("note", findings.notes)):
        for text in texts:
            print(f"{kind:<7}{text}")
    if findings.faults:
        count = len(findings.faults)
        raise UsageError(f"{spec}: {count} {'fault' if count == 1 else 'faults'} of the contract, listed above")
    players = ", ".join(f"{name} {wins} of {plays}" for name, (wins, plays) in findings.outcomes.items())
    print(f"{spec}: keeps the contract, by what it declares and by {findings.num_episodes} episodes")
    print(f"successes: {players}" if players else "successes: no player could be tried")
    return 0


def _record(config: Config, benchmark: Benchmark) -> None:
    """Write the counts down for the commands that import nothing. A benchmark whose tasks cannot be split has none: the
    check says so."""
    from r2v.pipeline.plan.recorded import record, recorded

    try:
        record(config, benchmark)
    except (UsageError, InputError) as error:
        logger.warning("its tasks are not recorded for dry runs: %s", error)
        return
    if counts := recorded(config):
        tasks = ", ".join(f"{count} {split}" for split, count in counts.tasks.items() if count)
        print(f"counts {tasks or 'no tasks'}; recorded for dry runs, which do not import it")
