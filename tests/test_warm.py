"""The stand-in for Python behaves as Python does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm

SAYS = "import sys; print(sys.argv[1:], sys.stdin.read()); print('no', file=sys.stderr); sys.exit(7)"


def test_words_folder_variables_and_open_files_are_handed_on(tmp_path: Path) -> None:
    done = subprocess.run([warm.python(), "-c", SAYS, "a", "b"], input="in", capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "['a', 'b'] in\n", "no\n")
    code = "import os, pathlib; pathlib.Path('here').write_text(os.environ['WORD'])"
    subprocess.run([warm.python(), "-c", code], cwd=tmp_path, env={"WORD": "x"}, check=True)
    assert (tmp_path / "here").read_text() == "x"


def test_a_module_and_a_script_find_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text("WORD = 'near'")
    (tmp_path / "script.py").write_text("from near import WORD; print(__name__, WORD)")
    for words in (["script.py"], ["-m", "script"], [str(tmp_path / "script.py")]):
        done = subprocess.run([warm.python(), *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == "__main__ near\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_both(number: signal.Signals) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen(
        [warm.python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.send_signal(number)
        assert process.stdout.read() == "", "closed when the last of them is gone"
    assert process.returncode == -number


def test_r2v_is_there_where_it_would_be_imported_and_nowhere_else(tmp_path: Path) -> None:
    code = "import sys; print('torch' in sys.modules, 'r2v.errors' in sys.modules)"
    for folder, path, there in ((tmp_path, "", False), (tmp_path, str(warm.ROOT), True), (warm.ROOT, "", True)):
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run([warm.python(), "-c", code], cwd=folder, env=env, capture_output=True, text=True)
        assert done.stdout == f"True {there}\n"
    (tmp_path / "r2v").mkdir()
    done = subprocess.run([warm.python(), "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "True False\n", "another R2V is nearer"


def test_a_commands_cost_is_that_of_the_process_it_stands_for() -> None:
    before = warm.cpu_seconds()
    subprocess.run([warm.python(), "-c", "sum(range(10**6))"], check=True)
    assert warm.cpu_seconds() > before
