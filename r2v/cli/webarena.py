"""`r2v webarena`: install the child interpreter, look whether the sites are there, and grade again what was recorded.

r2v webarena install                     # some 350 MB from PyPI, a minute
r2v webarena check                       # sites, language data, versions
r2v webarena regrade                     # recorded traffic by the offline grader; no site is needed
"""

from __future__ import annotations

import argparse
from pathlib import Path

from r2v.cli.options import Parser
from r2v.errors import EnvironmentFault

TRACES = Path("data/webarena/traces")
"""Where env.options.traces has the traffic recorded unless it is told otherwise."""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `webarena`."""
    about = "install WebArena's child interpreter, check its sites, or grade recorded traffic again"
    parser = commands.add_parser("webarena", help=about, description=f"{about[0].upper()}{about[1:]}.")
    actions = parser.add_subparsers(title="actions", metavar="<action>", required=True, parser_class=Parser)
    installer = actions.add_parser("install", help="make the interpreter of its worlds and graders")
    installer.set_defaults(act=_install)
    check = actions.add_parser("check", help="whether the sites of a set answer, and what is installed")
    check.add_argument(
        "--site",
        metavar="NAME",
        help="site set, as in rollout.sites (default: that of WA_SHOPPING, WA_MAP, ...)",
    )
    check.set_defaults(act=_check)
    regrade = actions.add_parser("regrade", help="grade recorded traffic by webarena-verified, without sites")
    regrade.add_argument(
        "--traces", metavar="DIR", type=Path, default=TRACES, help=f"folder of recorded traffic (default: {TRACES})"
    )
    regrade.add_argument("--out", metavar="FILE", type=Path, help="write a JSON line an episode there (default: none)")
    regrade.set_defaults(act=_regrade)


def _install(arguments: argparse.Namespace) -> int:
    from r2v.envs.webarena.home import webarena_home
    from r2v.envs.webarena.install import install_webarena

    versions = install_webarena(webarena_home(), say=print)
    print(f"{', '.join(f'{name} {version}' for name, version in versions.items())} at {webarena_home()}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from itertools import chain

    from r2v.envs.webarena.check import check_set_up, check_sites

    problems = 0
    for sound, line in chain(check_set_up(), check_sites(arguments.site)):
        print(f"{'ok   ' if sound else 'fault'} {line}")
        problems += not sound
    if problems:
        raise EnvironmentFault(f"{problems} to be mended before anything is played")
    return 0


def _regrade(arguments: argparse.Namespace) -> int:
    from r2v.envs.webarena.regrading import regrade

    for line in regrade(arguments.traces, out=arguments.out):
        print(line)
    return 0
