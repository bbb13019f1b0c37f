"""`r2v prefetch`: get models and images beforehand, so that jobs need no network.

r2v prefetch --config configs/swebench/noisy.yaml --dry-run     # what is here, and what is not
"""

from __future__ import annotations

import argparse

from r2v.cli.options import Parser, add_config_options, load_config


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `prefetch`."""
    about = "get the models and images that a configuration's jobs read, so that they run without a network"
    parser = commands.add_parser("prefetch", help=about, description=f"{about[0].upper()}{about[1:]}.")
    add_config_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what is here and what is not, and get nothing")
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    from r2v.pipeline.prefetch import wanted

    for item in wanted(load_config(arguments)):
        here = item.here()
        if here or arguments.dry_run:
            print(f"{item.what}: {'here' if here else 'to be fetched'}")
        else:
            item.fetch(print)
    return 0
