"""Shells for an agent's commands, by the protocol of mini-swe-agent's environments.

    shell.execute({"command": "ls"}, "/testbed")    # {"output": "...", "returncode": 0, "exception_info": ""}

Each command runs in a shell of its own: files persist, `cd` and variables do not. A returncode of -1 marks a command
that was stopped, with the reason in `exception_info`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Protocol

from r2v.envs.swe.repositories import WORK_TREE
from r2v.sandbox import Limits, run
from r2v.sandbox.bubblewrap import HOME, python
from r2v.sandbox.limits import MIB

TESTBED = "/testbed"
"""Path of the repository, in the sandbox as in SWE-bench's images."""
OUTPUT_BYTES = 16 * MIB
"""Bytes that a command may print in every kind of shell; test logs and patches are read from the output."""
_SITE, _BIN = "/opt/site", "/opt/bin"

_PIECE = 90_000
"""Characters of an argument, below the kernel's limit of 128 KiB."""


class Shell(Protocol):
    """A mini-swe-agent environment, or a class with the same method."""

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run `action["command"]` and return output, returncode and exception_info."""
        ...


class BubblewrapShell:
    """A shell in R2V's sandbox, without network, the user's files or variables, and disk. `home` packs the home folder
    and /tmp between commands; a command that was stopped leaves it unchanged."""

    def __init__(self, home: bytes, site: Path | None, *, timeout: int) -> None:
        self.home = home
        self._site = site
        self._timeout = timeout

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command; see `Shell`. Raises EnvironmentFault without a sandbox."""
        seconds = timeout or self._timeout
        limits = Limits(
            cpu_seconds=seconds,
            wall_seconds=2.0 * seconds,  # twice, so that CPU time is the limit on a busy machine
            memory=2048 * MIB,
            processes=64,
            file_bytes=16 * MIB,
            disk_bytes=64 * MIB,
            files=20_000,
            open_files=256,
            output_bytes=OUTPUT_BYTES,
        )
        script = 'cd "$1" && exec bash -c "$2" 2>&1 </dev/null'
        done = run(
            ["/usr/bin/env", *SHELL_VARIABLES, "bash", "-c", script, "bash", cwd or TESTBED, action["command"]],
            folder=self.home,
            mounted={} if self._site is None else {_SITE: self._site},
            links={TESTBED: f"{HOME}/{WORK_TREE}", f"{_BIN}/python": python(), f"{_BIN}/python3": python()},
            limits=limits,
        )
        text = done.stdout.decode(errors="replace")
        if done.ended != "exit" or done.folder is None:
            why = {
                "time": f"it did not end within {seconds} s",
                "output": f"it printed more than {limits.output_bytes // MIB} MiB",
            }.get(done.ended, "it ended the process that ran it")
            return {"output": "", "returncode": -1, "exception_info": f"stopped: {why}; nothing that it did was kept"}
        self.home = done.folder
        text = text.replace(str(done.user), "1000")  # the number differs between sandboxes
        return {"output": text, "returncode": done.status, "exception_info": ""}


SHELL_VARIABLES = (
    f"PATH={_BIN}:/usr/local/bin:/usr/bin:/bin",
    f"PYTHONPATH={_SITE}:{TESTBED}:{TESTBED}/src",
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONHASHSEED=0",
    "PYTEST_ADDOPTS=-p no:cacheprovider -o addopts= --color=no",
    "PAGER=cat",
    "GIT_PAGER=cat",
    "TERM=dumb",
    "TZ=UTC",
    "GIT_AUTHOR_NAME=agent",
    "GIT_AUTHOR_EMAIL=agent@localhost",
    "GIT_COMMITTER_NAME=agent",
    "GIT_COMMITTER_EMAIL=agent@localhost",
    "GIT_AUTHOR_DATE=2020-09-13T12:26:40Z",
    "GIT_COMMITTER_DATE=2020-09-13T12:26:40Z",
)
"""All environment variables of a command, besides HOME and LANG."""


def write_file(shell: Shell, path: str, data: bytes) -> str | None:
    """Write a file by commands, in pieces that fit into an argument; return the reason of a failure, else None."""
    content = base64.b64encode(data).decode()
    pieces = [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)] or [""]
    for index, piece in enumerate(pieces):
        sign = ">" if index == 0 else ">>"
        done = shell.execute({"command": f"printf %s '{piece}' | base64 -d {sign} {path}"}, "/")
        if done["returncode"] != 0:
            return str(done.get("exception_info") or done["output"])[-200:]
    return None
