"""The rendezvous of ranks: the folders it refuses, and foreign connections, which it does not take for a rank's."""

from __future__ import annotations

import errno
import fcntl
import re
from pathlib import Path

import pytest

from r2v import distributed
from r2v.errors import EnvironmentFault
from r2v.rendezvous import locked, require_lock_seen
from r2v.storage.record import describe

PACKAGE = Path(distributed.__file__).parent


def test_a_folder_that_others_may_open_is_refused_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with (
        pytest.raises(EnvironmentFault, match="which others may open .mode 0750") as refused,
        locked(tmp_path, "move it"),
    ):
        pass
    assert str(refused.value).endswith("; move it") and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(EnvironmentFault, match="no locks .No locks available.; set TMPDIR") as refused:
        distributed.launch(2, "-c", "raise SystemExit('a rank began')")
    assert "\n" not in str(refused.value) and list(tmp_path.iterdir()) == []


def test_locks_that_hold_on_one_node_only_are_refused(tmp_path: Path) -> None:
    with locked(tmp_path, ""):
        require_lock_seen(tmp_path)
    with pytest.raises(
        EnvironmentFault, match="no locks between nodes"
    ):  # as another node sees a lock that is not shared
        require_lock_seen(tmp_path)


RANK = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as group
from r2v.distributed import join, rank, run_rank
folder = Path(sys.argv[1])
def act():
    if rank() == 1:
        store = group.FileStore(os.environ["R2V_STORE"])  # instead of winning a race for the listener
        store.set("arrived/1", "")
        group.init_process_group("gloo", store=store, rank=1, world_size=2)
        group.all_to_all_single(torch.empty(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8))
        time.sleep(60)
    join("cpu")
    (folder / f"joined-{rank()}").touch()
sys.exit(run_rank(act))
"""


@pytest.mark.usefixtures("warm_ranks")
def test_a_rank_that_cannot_read_the_folder_is_an_intruder_in_one_line(tmp_path: Path) -> None:
    """The first process that connects to gloo is taken for the expected rank; it knows everything but the folder."""
    with pytest.raises(EnvironmentFault, match="another process than a rank of this launch") as refused:
        distributed.launch(2, "-c", RANK, str(tmp_path))
    assert "\n" not in str(refused.value) and describe(refused.value)["kind"] == "machine"
    assert list(tmp_path.glob("joined-*")) == []


def test_no_collective_of_ours_unpickles_and_groups_are_made_here_alone() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    unpickling = re.compile(r"(gather|broadcast|scatter|send|recv)_object")
    assert [name for name, text in sources.items() if unpickling.search(text)] == []
    servers = re.compile(r"TCPStore|torch\.distributed\.(elastic|launcher|run)|init_method|rdzv")
    assert [name for name, text in sources.items() if servers.search(text)] == []
    assert [name for name, text in sources.items() if "init_process_group" in text] == ["rendezvous.py"]
