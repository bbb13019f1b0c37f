"""`r2v swebench`: install the bundled instances and what grading needs, and make the images of a cluster.

r2v swebench install                                        # some megabytes from PyPI, a minute
r2v swebench images --config configs/swebench/noisy.yaml    # on a node with a network, before the jobs
"""

from __future__ import annotations

import argparse

from r2v.cli.options import Parser, add_config_options, load_config
from r2v.errors import EnvironmentFault, UsageError


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `swebench`."""
    about = "install SWE-bench's bundled instances, or make the container images of a data set"
    parser = commands.add_parser("swebench", help=about, description=f"{about[0].upper()}{about[1:]}.")
    actions = parser.add_subparsers(title="actions", metavar="<action>", required=True, parser_class=Parser)
    installer = actions.add_parser("install", help="make the bundled instances of their recipes, and what grades them")
    installer.set_defaults(act=_install)
    images = actions.add_parser("images", help="make or pull the images of env.options.dataset; those there stay")
    add_config_options(images)
    images.set_defaults(act=_images)


def _install(arguments: argparse.Namespace) -> int:
    from r2v.envs.swe.home import swebench_home
    from r2v.envs.swe.install import install

    home = swebench_home()
    count = install(home, say=print)
    print(f"{count} instances at {home}; env.options.dataset=bundled plays them")
    return 0


def _images(arguments: argparse.Namespace) -> int:
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
    return 0
