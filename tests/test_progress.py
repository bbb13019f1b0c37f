"""Progress: a bar in a terminal that leaves it as it was, plain lines in a pipe, one output in a notebook."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from r2v import progress
from r2v.progress import Progress, in_stage

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
WORK = """
import logging, os, signal, sys
from r2v import progress
from r2v.cli.boundary import guarded
from r2v.console import printable
progress._EVERY_DRAWING = progress._EVERY_LINE = 0.0
END = sys.argv[1]

def act():
    with progress.in_stage("stage 3 of 10"), progress.Progress("cloning", 4) as bar:
        for step in range(3):
            bar.advance(loss=0.5)
            logging.getLogger("r2v").warning("slow disk: path=/data/%s", "x" * 120)
        print("printed \\x1b[2J by another")
        if END == "bug":
            raise KeyError("a bug")
        if END == "SIGINT":
            os.kill(os.getpid(), signal.SIGINT)
        bar.advance()
    print("rich" in sys.modules, "torch" in sys.modules, "after the bar")
    return 0

sys.exit(guarded(act))
"""
LONG = "slow disk: path=/data/" + "x" * 120


def in_terminal(end: str) -> tuple[int, str]:
    """Run WORK in a pseudo-terminal; return its exit code and all output to the terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", WORK, end], ENVIRONMENT)
    sent = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # on Linux, if the other end is closed
            break
        if not chunk:
            break
        sent += chunk
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sent.decode()


@pytest.mark.parametrize("end,code", [("whole", 0), ("bug", 1), ("SIGINT", 75)])
def test_a_terminal_shows_a_bar_and_has_its_cursor_back_however_it_ends(end: str, code: int) -> None:
    ended, sent = in_terminal(end)
    assert ended == code, sent
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)
    assert "cloning, stage 3 of 10" in text and "2 of 4, loss 0.5" in text and "━" in text
    cursor = re.findall(r"\x1b\[\?25[lh]", sent)
    assert cursor[-1] == "\x1b[?25h"
    assert text.count(LONG) == 3, "a line of the log is whole, above the bar"
    assert "printed \\x1b[2J by another" in text and "\x1b[2J" not in sent
    assert sent.rstrip().endswith(
        {"whole": "True False after the bar", "bug": "/issues", "SIGINT": "where this one stopped"}[end]
    )


GONE = """
import os, signal, time
from r2v import progress
signal.signal(signal.SIGHUP, signal.SIG_IGN)
progress._EVERY_DRAWING = 0.0
with progress.Progress("cloning", 1000) as bar:
    for step in range(1000):
        bar.advance()
        time.sleep(0.001 if bar._display is not None else 0)
os._exit(7 if bar._display is None else 8)
"""


def test_work_goes_on_where_its_terminal_is_gone() -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", GONE], ENVIRONMENT)
    assert os.read(master, 1)
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_pipe_has_plain_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK, "whole"],
        env={**ENVIRONMENT, "FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stderr
    assert done.stdout.endswith("False False after the bar\n")
    first, *_ = done.stderr.splitlines()
    assert re.fullmatch(r"  cloning, stage 3 of 10: done=1 total=4 loss=0\.5 rate=\S+/s left=\d+s", first)


def test_money_is_exact_and_takes_the_place_of_the_rate(tmp_path: Path) -> None:
    try:
        progress.show_spent(tmp_path / "of another stage", 7.0)
        with in_stage("stage 1 of 2"):
            money_of_a_stage(tmp_path)
    finally:
        progress.show_spent(tmp_path / "of another stage", None)


def money_of_a_stage(tmp_path: Path) -> None:
    bar = Progress("collect", 40)
    bar.advance(10)
    assert bar.line(60.0) == "collect, stage 1 of 2: done=10 total=40 rate=0.17/s left=3min"
    try:
        progress.show_spent(tmp_path / "a", 0.000041)
        progress.show_spent(tmp_path / "b", 1.2)
        assert bar.line(60.0) == "collect, stage 1 of 2: done=10 total=40 usd=1.200041 left=3min"
        progress.show_spent(tmp_path / "a", None)
        assert bar.state(60.0) == "10 of 40, $1.20, 3 min left"
    finally:
        progress.show_spent(tmp_path / "a", None)
        progress.show_spent(tmp_path / "b", None)
    bar.advance(30)
    assert bar.state(60.0) == "40 of 40, 0.67/s"


CELLS = [
    """
import r2v
from r2v import progress
progress._EVERY_DRAWING = 0.0
pipeline = r2v.Pipeline(r2v.load_config(overrides=["data.num_episodes=20", "data.seeds=[1]"]))
_ = pipeline.run(until="collect")
""",
    "_ = pipeline.run(until='collect', force=['collect'])",
    """
async def play(name):
    with progress.Progress(name, 20) as bar:
        for step in range(20):
            bar.advance(loss=step)

with progress.in_stage("stage 3 of 10"):
    for number in range(10):
        await play(f"part {number}")
""",
]


def test_a_notebook_has_one_output_for_a_stage_and_runs_them_twice_in_a_row(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=ENVIRONMENT)
    for cell, last in zip(notebook.cells, ("20 of 20", "20 of 20", "part 9"), strict=True):
        (output,) = cell.outputs
        text = output.data["text/html"]
        assert output.output_type == "display_data" and last in text
        assert text.count("20 of 20") <= 6 and len(text) < 6000
