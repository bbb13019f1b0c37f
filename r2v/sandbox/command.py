"""Command run in a sandbox to its end or its limit, with input files, its output and its output files.

    outcome = run(["sh", "fix"], files={"fix": script}, wanted=["patch"], limits=Limits(wall_seconds=60))
    outcome.ended, outcome.status, outcome.stdout, outcome.files     # "exit", 0, b"...", {"patch": b"..."}

Results come from untrusted code: a status of 0 is no verdict.
"""

from __future__ import annotations

import json
import os
import selectors
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from r2v.errors import EnvironmentFault, UsageError
from r2v.sandbox.limits import MIB, Limits
from r2v.sandbox.process import Orders, pipe, start, stop
from r2v.sandbox.slots import slot

_CHUNK = 1 << 16
_STOPPED: dict[str, Any] = {"status": None, "files": {}, "folder": None, "user": None}


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Result of a command."""

    ended: Literal["exit", "time", "output", "killed"]
    """exit: by itself; time, output: stopped at a limit; killed: its supervisor was killed, by it or by the machine."""
    status: int | None
    """Exit status, -N after signal N; None unless it ended by itself."""
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes] = field(default_factory=dict)
    """The `wanted` files that exist: regular ones of at most `Limits.file_bytes`."""
    folder: bytes | None = None
    """Final home and /tmp, packed; None if no folder was given or the command did not end by itself."""
    user: int | None = field(default=None, compare=False)
    """User number of the command; None unless it ended by itself."""


def run(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes] | None = None,
    wanted: Sequence[str] = (),
    stdin: bytes = b"",
    folder: bytes | None = None,
    mounted: Mapping[str, Path] | None = None,
    links: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    unsafe: bool = False,
) -> CommandResult:
    """Run a command in a folder that holds `files`, and return the files `wanted`; both by names relative to it.

    `mounted` are further read-only paths by their place inside; for root, only their world-readable parts are visible.
    `links` are targets of symbolic links inside. `folder` is a packed home and /tmp (`r2v.sandbox.working_folder`),
    which the command starts with and the result returns, so that they outlive their sandbox without a disk. With
    `unsafe` the first two have no effect, and `folder` must be None.

    Raises UsageError for an empty command or a name outside the folder, and EnvironmentFault without a sandbox (unless
    `unsafe`) or if no process can be started.
    """
    limits, files = limits or Limits(), files or {}
    if not command:
        raise UsageError("the sandbox was given no command; give a program and its arguments")
    for name in (*files, *wanted):
        _require_inside(name)
    with ExitStack() as opened:
        where = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="r2v-"))) if unsafe else Path("/")
        given = opened.enter_context(tempfile.TemporaryFile())
        given.write(stdin)
        given.seek(0)
        ours, theirs = zip(*(pipe(opened) for _ in range(3)), strict=True)
        data = {
            "command": list(command),
            "files": {name: b64encode(content).decode() for name, content in files.items()},
            "wanted": list(wanted),
            "most": limits.file_bytes,
            "outside": str(Path("/proc/self/ns/pid").readlink()),
            "result": theirs[2].fileno(),
            "folder": None if folder is None else b64encode(folder).decode(),
        }
        orders = Orders(
            modules=("r2v.sandbox.working_folder", "r2v.sandbox.supervising"),
            data=data,
            limits=limits,
            watched=True,
            mounted=mounted or {},
            links=links or {},
            keep=(theirs[2].fileno(),),
            traceable=False,
            unsafe=unsafe,
            folder=where,
        )
        opened.enter_context(slot())
        opened.callback(stop, start(orders, stdin=given, stdout=theirs[0], stderr=theirs[1]))
        for end in theirs:
            end.close()
        return _outcome(ours[0].fileno(), ours[1].fileno(), ours[2].fileno(), limits, folder=folder is not None)


def _require_inside(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise UsageError(f"the sandbox was given the file {name!r}; name files relative to its folder, without ..")


def _outcome(stdout: int, stderr: int, result: int, limits: Limits, *, folder: bool) -> CommandResult:
    """Read the three pipes to their end or to a limit, and return the result."""
    content: dict[int, bytearray] = {stdout: bytearray(), stderr: bytearray(), result: bytearray()}
    # Files are sent as base64, which is a third longer.
    of_result = 2 * (limits.output_bytes + (limits.disk_bytes if folder else 0)) + MIB
    most = {stdout: limits.output_bytes, stderr: limits.output_bytes, result: of_result}
    ended: Literal["exit", "time", "output"] = "exit"
    until = time.monotonic() + limits.wall_seconds
    with selectors.DefaultSelector() as selector:
        for end in content:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map() and ended == "exit":
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                ended = "time"
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                if not chunk:
                    selector.unregister(key.fd)
                content[key.fd] += chunk
                if len(content[key.fd]) > most[key.fd]:
                    ended = "output"
    out, err = (bytes(content[end][: most[end]]) for end in (stdout, stderr))
    if not content[result]:
        reason = " ".join(err.decode(errors="replace").split())[:200] or "no reason given"
        raise EnvironmentFault(
            f"the sandbox did not begin ({reason}); free memory or processes and run the same command again"
        )
    try:
        report = json.loads(content[result]) if ended == "exit" else _STOPPED
    except ValueError:  # the supervisor was killed before it had written its report
        return CommandResult(ended="killed", status=None, stdout=out, stderr=err)
    files = {name: b64decode(text) for name, text in report["files"].items()}
    left = None if report["folder"] is None else b64decode(report["folder"])
    return CommandResult(
        ended=ended, status=report["status"], stdout=out, stderr=err, files=files, folder=left, user=report["user"]
    )
