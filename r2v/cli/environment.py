"""`r2v check-env`: what is wrong with a benchmark, in sentences."""

from __future__ import annotations

import argparse

from r2v.cli.options import Parser, add_allow_env, add_config_options, load_config, whole
from r2v.constraints import Range
from r2v.errors import UsageError


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `check-env`."""
    about = "check that a benchmark keeps the contract: declarations, answers, splits, replay, snapshots, expert"
    parser = commands.add_parser(
        "check-env",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Its code is imported and run. Exit code 0 without faults, else 2.",
    )
    parser.add_argument(
        "benchmark",
        nargs="?",
        metavar="MODULE:CLASS",
        help="the benchmark to check (default: env.benchmark of the configuration); env.options says how it is built",
    )
    add_config_options(parser)
    add_allow_env(parser)
    parser.add_argument(
        "--num-tasks",
        type=whole(Range(at_least=1, at_most=10_000)),
        default=3,
        metavar="N",
        help="tasks to play, the first of each split (default: 3)",
    )
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    from r2v.envs.base import benchmark_class
    from r2v.envs.check import check_benchmark
    from r2v.envs.guard import described

    config = load_config(arguments)
    spec = arguments.benchmark or config.env.benchmark
    made_by = benchmark_class(spec)
    try:
        benchmark = made_by(**config.env.options)
    except Exception as error:  # somebody else's constructor
        raise UsageError(f"{spec}: cannot be made with env.options {config.env.options}: {described(error)}") from error
    findings = check_benchmark(
        benchmark, num_tasks=arguments.num_tasks, seed=config.seed, max_steps=config.inference.max_steps
    )
    for kind, texts in (("fault", findings.faults), ("note", findings.notes)):
        for text in texts:
            print(f"{kind:<7}{text}")
    if findings.faults:
        count = len(findings.faults)
        raise UsageError(f"{spec}: {count} {'fault' if count == 1 else 'faults'} of the contract, listed above")
    print(f"{spec}: keeps the contract, by what it declares and by {findings.num_episodes} episodes")
    return 0
