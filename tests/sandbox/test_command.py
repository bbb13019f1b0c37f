"""A command in a sandbox: its input, its output, and the refusals before anything runs."""

from __future__ import annotations

import pytest

from r2v.errors import UsageError
from r2v.sandbox import CommandResult, Limits, run
from tests.sandbox import MODES, inside, sandboxed


@pytest.mark.parametrize("unsafe", MODES)
def test_files_and_input_go_in_and_files_output_and_status_come_out(unsafe: bool) -> None:
    script = b"cat deep/in; cat; echo oops >&2; printf made > deep/out; exit 3"
    result = run(
        ["/bin/sh", "script"],
        files={"script": script, "deep/in": b"file "},
        stdin=b"input",
        wanted=["deep/out", "deep/in", "none", "deep"],
        limits=Limits(processes=4),
        unsafe=unsafe,
    )
    files = {"deep/out": b"made", "deep/in": b"file "}
    assert result == CommandResult(ended="exit", status=3, stdout=b"file input", stderr=b"oops\n", files=files)


@pytest.mark.parametrize("unsafe", MODES)
def test_a_program_that_is_not_there_has_the_shell_s_status(unsafe: bool) -> None:
    result = run(["no-such-program"], unsafe=unsafe)
    assert (result.ended, result.status, result.stderr) == (
        "exit",
        127,
        b"no-such-program: No such file or directory\n",
    )


@sandboxed
def test_each_command_begins_with_nothing_that_another_left() -> None:
    assert run(["/bin/sh", "-c", "echo x > /tmp/left; echo x > left"], limits=Limits(processes=2)).status == 0
    assert run(["/bin/sh", "-c", "ls -A /tmp /home"], limits=Limits(processes=2)).stdout == b"/home:\n\n/tmp:\n"


@sandboxed
def test_a_command_that_sleeps_is_stopped_by_the_clock_with_what_it_had_said() -> None:
    result = inside("import time\nprint('before', flush=True)\ntime.sleep(60)", wall_seconds=0.7, wanted=("program",))
    assert (result.ended, result.status, result.stdout, result.files) == ("time", None, b"before\n", {})


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "", ".", "a\0b"])
def test_a_file_name_that_leaves_the_folder_is_refused(name: str) -> None:
    for files, wanted in (({name: b""}, []), ({}, [name])):
        with pytest.raises(UsageError, match="name files relative to its folder"):
            run(["true"], files=files, wanted=wanted, unsafe=True)


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(UsageError, match="no command"):
        run([])
