from __future__ import annotations

import errno
import hashlib
import inspect
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, LeaseConflict
from r2v.storage import lease as lease_module
from r2v.storage.lease import Owner, confirm, holder, lease

HOLD = """
import sys, time
from pathlib import Path
from r2v.storage.lease import lease
with lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""

CONTEND = """
import contextlib, dataclasses, os, sys
from pathlib import Path
from r2v.errors import EnvironmentFault, LeaseConflict
from r2v.storage.lease import Owner, lease
place, inside, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for _ in range(rounds):
    with contextlib.suppress(LeaseConflict), lease(place, wait=60) as me:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))   # fails when two are inside
        os.unlink(inside)
        dead = dataclasses.replace(Owner.here(), started="1")
        os.rename(place / me.filename, place / dead.filename)  # leave it as a killed process does
"""


def leave_behind(path: Path, owner: Owner, age: float) -> None:
    path.mkdir()
    (path / owner.filename).touch()
    then = time.time() - age
    os.utime(path / owner.filename, (then, then))


def stranger_of(file: Path) -> Owner:
    owner = Owner.of(file.name)
    assert owner is not None
    return owner


def stranger() -> Owner:
    return replace(Owner.here(), host="node07", machine="0" * 12, job="4711")


def test_a_lease_is_a_folder_only_while_held(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    with lease(place) as me:
        assert holder(place) == me
        assert [file.name for file in place.iterdir()] == [me.filename]
    assert list(tmp_path.iterdir()) == []
    assert holder(place) is None


def test_second_is_refused_in_one_line_naming_holder_and_remedy(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    with lease(place) as me, pytest.raises(LeaseConflict) as refusal, lease(place):
        pass
    message = str(refusal.value)
    assert f"pid {me.pid} on {me.host}" in message and f"kill {me.pid}" in message and "\n" not in message
    with lease(place):
        pass


def test_release_happens_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(tmp_path / "x.lease"):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_killed_holder_is_replaced_at_once(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(LeaseConflict), lease(place):
        pass
    process.kill()
    process.wait()
    assert holder(place) is None
    with lease(place) as me:
        assert holder(place) == me


STRAYS = [
    ".nfs000123",
    ".DS_Store",
    "a,b,c,d,e,f",
    "h,0,0,1,,0",
    f"h,0,{10**12},1,,0",
    "1,2,3",
    "\udcff",
    "h,0,-1,1,,0",
]


@pytest.mark.parametrize("name", STRAYS)
def test_a_file_that_is_no_owners_stops_nobody(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside a living owner's file it is ignored, alone it is moved aside with a line, and nothing is lost."""
    place = tmp_path / "x.lease"
    with lease(place) as me:
        (place / name).write_text("kept")
        assert holder(place) == me
        with pytest.raises(LeaseConflict, match=f"pid {me.pid}"), lease(place):
            pass
    assert holder(place) is None and [file.name for file in place.iterdir()] == [name]
    with lease(place) as me:
        assert holder(place) == me and [file.name for file in place.iterdir()] == [me.filename]
    [aside] = tmp_path.iterdir()
    assert aside.suffix == ".quarantine" and (aside / name).read_text() == "kept"
    [line] = caplog.messages
    assert str(place) in line and aside.name in line and line.isprintable()


@pytest.mark.parametrize("kind", ["file", "link to nowhere", "empty folder", "folder in it", "dead owner beside it"])
def test_what_stands_in_a_leases_place_stops_nobody(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    if kind == "file":
        place.write_text("kept")
    elif kind == "link to nowhere":
        place.symlink_to("nowhere")
    elif kind == "dead owner beside it":
        leave_behind(place, replace(Owner.here(), started="1"), age=0)
        (place / ".DS_Store").touch()
    else:
        (place / "inner" if kind == "folder in it" else place).mkdir(parents=True)
    assert holder(place) is None
    with lease(place) as me:
        assert holder(place) == me
    assert holder(place) is None
    with lease(place) as me:
        assert holder(place) == me


def test_a_lease_taken_over_is_fresh_from_its_first_moment(tmp_path: Path) -> None:
    """With the dead owner's old time another machine would take it too."""
    place = tmp_path / "x.lease"
    leave_behind(place, stranger(), age=10_000)
    began = time.time()
    with lease(place, ttl=400) as me:
        assert (place / me.filename).stat().st_mtime > began - 1


def test_a_reused_process_id_is_not_the_holder(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    leave_behind(place, replace(Owner.here(), started="1"), age=0)
    with lease(place):
        pass


def test_live_holder_here_keeps_it_however_long_it_is_silent(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    leave_behind(place, Owner.here(), age=10_000)
    with pytest.raises(LeaseConflict), lease(place):
        pass


def test_holder_elsewhere_counts_as_dead_only_after_ttl(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    owner = stranger()
    leave_behind(place, owner, age=30)
    with pytest.raises(LeaseConflict, match="scancel 4711"), lease(place, ttl=60):
        pass
    assert holder(place, ttl=60) == owner and holder(place, ttl=20) is None
    with lease(place, ttl=20) as me:
        assert holder(place) == me


def test_a_holder_elsewhere_is_dead_only_when_older_than_the_ttl(tmp_path: Path) -> None:
    place, probe = tmp_path / "x.lease", tmp_path / "probe"
    leave_behind(place, stranger(), age=0)
    probe.touch()
    (file,) = place.iterdir()
    now = float(int(probe.stat().st_mtime))  # whole seconds, so that nothing is rounded
    for age, stale in ((59, False), (60, False), (61, True), (-59, False)):
        os.utime(file, (now - age, now - age))
        assert lease_module._stale(place, stranger_of(file), 60.0, now) is stale, age
    assert lease_module._stale(place, replace(stranger_of(file), token="gone"), 60.0, now)


def test_a_process_id_means_something_in_one_boot_and_one_namespace_only() -> None:
    """Machines of one host name, reboots, and containers with numbers of their own are told apart."""
    machine = Owner.here().machine
    marks = [socket.gethostname(), Path("/proc/sys/kernel/random/boot_id").read_text()]
    marks.append(str(Path("/proc/self/ns/pid").readlink()))
    known = {
        "".join(some): hashlib.sha256("".join(some).encode()).hexdigest()[:12]
        for count in range(4)
        for some in combinations(marks, count)
    }
    assert [some for some, name in known.items() if name == machine] == ["".join(marks)]


def test_a_zombie_and_a_process_that_began_at_another_time_do_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
    assert not lease_module._runs(process.pid, lease_module._started(process.pid))
    process.wait()
    assert not lease_module._runs(process.pid, "1") and lease_module._started(process.pid) == ""
    me = Owner.here()
    assert lease_module._runs(me.pid, me.started) and not lease_module._runs(me.pid, "1")
    assert me.started.isdigit() and int(me.started) > 0


def test_a_disk_that_fails_is_no_other_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def fails(source: Path, target: Path) -> None:
        asked.append(target)
        assert len(asked) == 1, "asked again and again"
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises((OSError, EnvironmentFault), match="Input/output error"), lease(tmp_path / "x.lease"):
        pass
    assert list(tmp_path.iterdir()) == [], "and nothing is left behind"


def test_asking_for_a_holder_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    leave_behind(place, stranger(), age=0)
    assert holder(place) == stranger_of(next(place.iterdir()))
    assert [path.name for path in tmp_path.iterdir()] == ["x.lease"]


def test_the_heartbeat_ends_with_the_lease(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with lease(tmp_path / "x.lease", ttl=0.04):
        (beating,) = set(threading.enumerate()) - before
    beating.join(30)
    assert not beating.is_alive()


def test_unless_asked_otherwise_a_minute_of_silence_is_death_and_nobody_waits() -> None:
    defaults = {name: p.default for name, p in inspect.signature(lease).parameters.items()}
    assert (defaults["ttl"], defaults["wait"]) == (60.0, 0.0)


def test_waiting_ends_when_the_holder_does_and_gives_up_when_it_does_not(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lease(place):
            entered.set()
            leave.wait(30)

    holding = threading.Thread(target=hold)
    holding.start()
    assert entered.wait(30)
    with pytest.raises(LeaseConflict), lease(place, wait=0.05):
        pass
    threading.Timer(0.05, leave.set).start()
    with lease(place, wait=30) as me:
        assert holder(place) == me
    holding.join()


def test_an_owner_is_what_its_file_is_called() -> None:
    me = Owner.here()
    assert Owner.of(me.filename) == me
    assert str(stranger()) == f"pid {os.getpid()} on node07 (Slurm job 4711)"
    assert str(replace(me, job="")) == f"pid {me.pid} on {me.host}"


def test_a_time_in_the_future_without_a_heartbeat_does_not_block_for_ever(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    leave_behind(place, stranger(), age=-10_000)
    with lease(place, ttl=0.2) as me:
        assert holder(place) == me


def test_a_time_in_the_future_with_a_heartbeat_keeps_the_lease(tmp_path: Path) -> None:
    place, owner, stop = tmp_path / "x.lease", stranger(), threading.Event()
    leave_behind(place, owner, age=-10_000)

    def beat() -> None:
        """Renew a lease as on a machine whose clock is ahead."""
        while not stop.wait(0.05):
            ahead = time.time() + 10_000
            os.utime(place / owner.filename, (ahead, ahead))

    holding = threading.Thread(target=beat)
    holding.start()
    try:
        with pytest.raises(LeaseConflict, match="scancel 4711"), lease(place, ttl=60):
            pass
        assert [file.name for file in place.iterdir()] == [owner.filename]
    finally:
        stop.set()
        holding.join()


def test_heartbeat_keeps_a_lease_alive_for_others(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    with lease(place, ttl=0.2) as me:
        os.utime(place / me.filename, (0, 0))
        for _ in range(1000):
            if (place / me.filename).stat().st_mtime > 0:
                break
            time.sleep(0.01)
        assert (place / me.filename).stat().st_mtime > 0


def test_whoever_lost_the_lease_is_told_and_removes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    other = stranger()
    with pytest.raises(LeaseConflict, match="node07"), lease(place) as me:
        (place / me.filename).rename(place / other.filename)
        with pytest.raises(LeaseConflict):
            confirm(place, me)
    assert [file.name for file in place.iterdir()] == [other.filename]


def test_only_one_is_inside_while_many_contend_for_dead_leases(tmp_path: Path) -> None:
    place = tmp_path / "x.lease"
    command = [sys.executable, "-c", CONTEND, str(place), str(tmp_path / "inside"), "25"]
    processes = [subprocess.Popen(command) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    with lease(place):
        pass
    assert list(tmp_path.iterdir()) == []
