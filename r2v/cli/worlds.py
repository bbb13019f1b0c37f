"""Commands of benchmarks' worlds: `r2v check-env`, `swebench`, `webarena`.

r2v check-env my_package.shop:Shop                          # the faults of a benchmark, in sentences
r2v swebench install                                        # some megabytes from PyPI, a minute
r2v swebench images --config configs/swebench/noisy.yaml    # on a node with a network, before the jobs
r2v webarena install                                        # some 350 MB from PyPI, a minute
r2v webarena check                                          # sites, language data, versions
r2v webarena regrade                                        # grade recorded traffic offline, without sites
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.cli.options import Parser, add_config_options, add_word, add_words, load_config, whole
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.extensions import is_dotted
from r2v.log import logger

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.envs.base import Benchmark

TRACES = Path("data/webarena/traces")
"""Default of env.options.traces, the folder of recorded traffic."""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add every command of this module to the command line."""
    _add_check_env(commands)
    _add_swebench(commands)
    _add_webarena(commands)


def _add_check_env(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "check that a benchmark keeps the contract: declarations, answers, splits, replay, snapshots, expert"
    more = "Its code is imported and run, and its tasks are counted for dry runs. Exit code 0 without faults, else 2."
    parser = add_word(commands, "check-env", about, _check_env, more=more)
    parser.add_argument(
        "benchmark",
        nargs="?",
        metavar="MODULE:CLASS",
        help="the benchmark to check, built with env.options (default: env.benchmark of the configuration)",
    )
    add_config_options(parser)
    parser.set_defaults(sends_keys=True, runs_code=True)
    parser.add_argument(
        "--num-tasks",
        type=whole(1, 10_000),
        default=3,
        metavar="N",
        help="number of tasks to play, from the start of each split (default: 3)",
    )


def _check_env(arguments: argparse.Namespace) -> None:
    from r2v.envs.base import benchmark_class, declaration_problem
    from r2v.envs.check import check_benchmark
    from r2v.envs.guard import described

    config = load_config(arguments)
    spec = arguments.benchmark or config.env.benchmark
    made_by = benchmark_class(spec)
    try:
        benchmark = made_by(**config.env.options)
    except Exception as error:  # a user's constructor may raise anything
        if isinstance(error, ModuleNotFoundError) and not is_dotted(spec):
            raise  # the error boundary names the extra to install
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


def _record(config: Config, benchmark: Benchmark) -> None:
    """Record task counts for commands that import nothing; tasks that cannot be split have none (the check says so)."""
    from r2v.pipeline.plan.recorded import record, recorded

    try:
        record(config, benchmark)
    except (UsageError, InputError) as error:
        logger.warning("task counts not recorded for dry runs: error=%s", error)
        return
    if counts := recorded(config):
        tasks = ", ".join(f"{count} {split}" for split, count in counts.tasks.items() if count)
        print(f"counts {tasks or 'no tasks'}; recorded for dry runs, which do not import it")


def _add_swebench(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "install SWE-bench's bundled instances, or make the container images of a data set"
    actions = add_words(commands, "swebench", about)
    about = "make the bundled instances from their recipes, and their graders"
    add_word(actions, "install", about, _install_swebench)
    about = "make or pull the missing images of env.options.dataset"
    images = add_word(actions, "images", about, _make_images)
    add_config_options(images)


def _install_swebench(arguments: argparse.Namespace) -> None:
    from r2v.envs.swe.home import swebench_home
    from r2v.envs.swe.install import install

    home = swebench_home()
    count = install(home, say=print)
    print(f"{count} instances at {home}; env.options.dataset=bundled plays them")


def _make_images(arguments: argparse.Namespace) -> None:
    from r2v.envs.base import load_benchmark
    from r2v.envs.swe import SweBench
    from r2v.envs.swe.images import make_images

    config = load_config(arguments)
    if config.env.benchmark != SweBench.name:
        raise UsageError(
            f"env.benchmark={config.env.benchmark}: has no images; name --config configs/swebench/noisy.yaml"
        )
    benchmark = load_benchmark(SweBench.name, config.env.options)
    assert isinstance(benchmark, SweBench)
    instances = list(benchmark.instances.values())
    failed = make_images(benchmark.opener, instances, say=print)
    if failed:
        raise EnvironmentFault(
            f"{len(failed)} of {len(instances)} images could not be made, first {failed[0]}; the same command goes on"
        )


def _add_webarena(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "install WebArena's child interpreter, check its sites, or grade recorded traffic again"
    actions = add_words(commands, "webarena", about)
    add_word(actions, "install", "make the interpreter of its worlds and graders", _install_webarena)
    check = add_word(actions, "check", "check that the sites of a set answer, and the installation", _check_sites)
    check.add_argument(
        "--site",
        metavar="NAME",
        help="site set, as in rollout.sites (default: that of WA_SHOPPING, WA_MAP, ...)",
    )
    regrade = add_word(actions, "regrade", "grade recorded traffic by webarena-verified, without sites", _regrade)
    regrade.add_argument(
        "--traces", metavar="DIR", type=Path, default=TRACES, help=f"folder of recorded traffic (default: {TRACES})"
    )
    regrade.add_argument(
        "--out", metavar="FILE", type=Path, help="write one JSON line per episode to this file (default: none)"
    )


def _install_webarena(arguments: argparse.Namespace) -> None:
    from r2v.envs.webarena.home import webarena_home
    from r2v.envs.webarena.install import install_webarena

    versions = install_webarena(webarena_home(), say=print)
    print(f"{', '.join(f'{name} {version}' for name, version in versions.items())} at {webarena_home()}")


def _check_sites(arguments: argparse.Namespace) -> None:
    from itertools import chain

    from r2v.envs.webarena.check import check_set_up, check_sites

    problems = 0
    for sound, line in chain(check_set_up(), check_sites(arguments.site)):
        print(f"{'ok   ' if sound else 'fault'} {line}")
        problems += not sound
    if problems:
        raise EnvironmentFault(f"{problems} faults to be mended before an episode can be played")


def _regrade(arguments: argparse.Namespace) -> None:
    from r2v.envs.webarena.regrading import regrade

    for line in regrade(arguments.traces, out=arguments.out):
        print(line)
