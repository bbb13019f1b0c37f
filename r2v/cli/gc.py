"""`r2v gc`: remove artifacts that nothing points at, and the checkpoints of finished ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from r2v.cli.options import Parser
from r2v.console import text_table


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `gc`."""
    about = "remove artifacts that nothing points at, checkpoints of finished stages, old snapshots that no chain runs"
    parser = commands.add_parser(
        "gc",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. Collected runs and journals of what a provider was paid for stay.",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would go and how many bytes, and remove nothing"
    )
    parser.add_argument(
        "--unfinished",
        action="store_true",
        help="also remove attempts that were never finished, where nothing points at them (default: left)",
    )
    parser.set_defaults(act=_act)


def _act(arguments: argparse.Namespace) -> int:
    from r2v.pipeline.gc import garbage, remove

    items = garbage(Path(), unfinished=arguments.unfinished)
    gone = items if arguments.dry_run else [item for item in items if remove(item)]
    rows = [("bytes", "artifact", "why"), *((f"{item.size:,}", item.folder.name, item.why) for item in gone)]
    if gone:
        print(text_table(rows, right=(0,)))
    total = sum(item.size for item in gone)
    verb = "would be removed" if arguments.dry_run else "removed"
    print(f"{len(gone)} {'place' if len(gone) == 1 else 'places'}, {total:,} bytes {verb}")
    return 0
