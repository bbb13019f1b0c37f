"""Attacks on the walls: harmful programs are refused, and the outside is unharmed."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import pytest

import r2v
from r2v.sandbox.bubblewrap import as_root, python
from r2v.sandbox.command import run
from r2v.sandbox.limits import MIB, Limits
from r2v.sandbox.verdict import passes
from tests.sandbox import inside, sandboxed

pytestmark = sandboxed
RIGHT, TESTS = "def f(x): return x * x", "assert f(2) == 4"


def harmless(attack: str) -> bool:
    """True if an attack is refused, and a right answer behind it still passes."""
    lines = "".join(f"    {line}\n" for line in attack.strip().splitlines())
    code = f"def attack():\n{lines}\ntry:\n    attack()\n    done = True\nexcept BaseException: done = False\n{RIGHT}"
    return passes(code, f"{TESTS}\nassert done is False", limits=Limits(cpu_seconds=2))


def test_no_server_of_this_machine_can_be_reached(tmp_path: Path) -> None:
    families = {
        "tcp": (socket.AF_INET, ("127.0.0.1", 0)),
        "unix": (socket.AF_UNIX, str(tmp_path / "socket")),
        "abstract": (socket.AF_UNIX, f"\0r2v-{os.getpid()}"),
    }
    servers = []
    for family, address in families.values():
        server = socket.socket(family)
        server.bind(address)
        server.listen()
        server.setblocking(False)
        servers.append(server)
        (tmp_path / "socket").exists() and (tmp_path / "socket").chmod(0o777)
        where = (socket.AF_INET, server.getsockname()) if family == socket.AF_INET else (socket.AF_UNIX, address)
        assert harmless(f"import socket\nsocket.socket({int(where[0])}).connect({where[1]!r})")
    for server in servers:
        with server, pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    "attack",
    [
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)",
        "import socket\nsocket.getaddrinfo('example.org', 80)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.53', 53))\n"
        "assert len(socket.if_nameindex()) > 1",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    ],
)
def test_there_is_no_network(attack: str) -> None:
    assert harmless(attack)


def test_nothing_of_the_user_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2V_SENTINEL", "a-secret-of-ours")
    (tmp_path / "mine.txt").write_text("a-secret-of-ours")
    own = [tmp_path / "mine.txt", Path(r2v.__file__), Path.home(), Path.cwd(), Path("/proc/1/root/root"), "/etc/passwd"]
    system = ["/etc/shadow", "/sys", "/run", "/var", "/root", "/dev/mem", "/dev/vda", "/dev/tty", "/proc/kcore"]
    code = f"""
import glob, os
for path in {[*map(str, own), *system, f"/proc/{os.getpid()}/environ"]}:
    try:
        print("LISTED", path, os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(9))
    except OSError:
        pass
pids = [name for name in os.listdir("/proc") if name.isdigit()]
print("PROCESSES", len(pids))
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/task/*/environ"):
    try:
        print("SECRET" if b"a-secret-of-ours" in open(path, "rb").read() else "")
    except OSError:
        pass
print("ENVIRONMENT", *sorted(os.environ))
print("DESCRIPTORS", [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists(f"/proc/self/fd/{{n}}")])
for folder, folders, names in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("proc", "usr", "python")]
    for name in names:
        print("FILE", os.path.join(folder, name))
"""
    outcome = inside(code)
    said = outcome.stdout.decode()
    assert (outcome.ended, outcome.status) == ("exit", 0)
    assert "LISTED" not in said and "SECRET" not in said and "DESCRIPTORS []" in said
    assert int(said.split("PROCESSES ")[1].split()[0]) <= 4
    assert set(said.split("ENVIRONMENT ")[1].splitlines()[0].split()) <= {
        "HOME",
        "PATH",
        "LANG",
        "PWD",
        "LD_LIBRARY_PATH",
    }
    files = {line.split(" ")[1] for line in said.splitlines() if line.startswith("FILE")}
    expected = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
    assert {name for name in files if not name.startswith("/etc/alternatives/")} <= expected | {
        "/home/program",
        "/etc/ld.so.cache",
    }


def test_nothing_can_be_written_but_two_folders_in_memory(tmp_path: Path) -> None:
    target = tmp_path / "mine.txt"
    target.write_text("as it was")
    tmp_path.chmod(0o777)
    target.chmod(0o666)
    code = f"""
import os
written = set()
for folder, folders, _ in os.walk("/"):
    if folder.count("/") == 3:
        folders[:] = []
    if folder == "/":
        folders.remove("proc")
    try:
        open(os.path.join(folder, "written"), "w").close()
        written.add(folder)
    except OSError:
        pass
print(sorted(written))
for action in (
    lambda: open({str(target)!r}, "w").write("changed"),
    lambda: os.remove("/usr/bin/env"),
    lambda: os.rename("/usr", "/u"),
    lambda: open("/proc/sys/kernel/core_pattern", "w").write("x"),
    lambda: open("/proc/sysrq-trigger", "w").write("b"),
    lambda: os.link("/usr/bin/env", "/home/env"),
    lambda: os.chmod("/usr/bin/env", 0o4777),
    lambda: os.mknod("/home/d", 0o60666, 2048),
    lambda: os.chroot("/home"),
    lambda: os.setuid(0),
):
    try:
        action()
        print("DONE")
    except OSError:
        pass
"""
    said = inside(code).stdout.decode()
    assert said.strip() == "['/home', '/tmp']"
    assert target.read_text() == "as it was" and [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_is_mounted_to_be_read_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("as it was")
    tmp_path.chmod(0o777)
    (tmp_path / "data.txt").chmod(0o666)
    command = ["/bin/sh", "-c", f"cat {tmp_path}/data.txt; echo x > {tmp_path}/data.txt; rm -f {tmp_path}/data.txt"]
    outcome = run(command, mounted={str(tmp_path): tmp_path}, limits=Limits(processes=4))
    assert outcome.stdout == b"as it was" and (tmp_path / "data.txt").read_text() == "as it was"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of another machine's system calls")
def test_doors_to_the_kernel_are_shut() -> None:
    calls = {
        "unshare": (272, 0x10000000),
        "mount": (165, 0, 0, 0, 0, 0),
        "clone a namespace": (56, 0x10000000 | 17, 0, 0, 0, 0),
        "shmget": (29, 0, 1 << 30, 0o1777),
        "ptrace": (101, 0, 1, 0, 0),
        "keyctl": (250, 0, -3, 0),
        "bpf": (321, 0, 0, 0),
        "io_uring_setup": (425, 8, 0),
        "userfaultfd": (323, 0),
        "perf_event_open": (298, 0, 0, -1, -1, 0),
        "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
        "open_tree": (428, -100, 0, 1),
        "x32 getpid": (0x40000000 | 39,),
    }
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, call in {calls!r}.items():
    result = libc.syscall(*[ctypes.c_long(word) for word in call])
    print(name, result, ctypes.get_errno())
print("clone3", libc.syscall(ctypes.c_long(435), 0, 0), ctypes.get_errno())
"""
    lines = inside(code, processes=4).stdout.decode().splitlines()
    assert lines == [f"{name} -1 1" for name in calls] + ["clone3 -1 38"]


def test_a_fork_bomb_stops_at_its_limit_and_leaves_no_process() -> None:
    marker = f"bomb-of-{os.getpid()}"
    code = f"""
import os, sys, threading, time
count = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", "{marker}"])
        count += 1
except OSError:
    pass
print(count, flush=True)
try:
    [threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(9)]
except RuntimeError:
    print("no thread", flush=True)
os._exit(0)
"""
    outcome = inside(code, processes=6)
    assert outcome.stdout.split() == [b"5", b"no", b"thread"] and outcome.ended == "exit"
    assert inside(code).stdout.split()[0] == b"0"
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if marker in read(path)]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_a_memory_bomb_ends_at_its_limit() -> None:
    code = """
import mmap
held = 0
kept = []
for make in (bytearray, lambda size: mmap.mmap(-1, size)):
    try:
        while held < 4096:
            kept.append(make(1 << 20))
            held += 1
    except (MemoryError, OSError):
        pass
print(held)
"""
    outcome = inside(code, memory=128 * MIB)
    assert outcome.ended == "exit" and int(outcome.stdout) < 128


def test_a_disk_is_filled_only_in_memory_and_only_so_far() -> None:
    before = sum(1 for _ in Path("/tmp").iterdir())
    code = """
import os
for folder in ("/home", "/tmp", "/dev/shm", "/dev", "/", "/run", "/var/tmp"):
    total = 0
    try:
        for number in range(1000):
            with open(f"{folder}/big{number}", "wb") as file:
                total += file.write(bytes(1 << 20))
    except OSError:
        pass
    print(total >> 20)
try:
    open("/tmp/huge", "wb").truncate(1 << 40)
except OSError:
    print("too big")
"""
    outcome = inside(code, disk_bytes=4 * MIB)
    counts = outcome.stdout.split()
    assert [int(count) for count in counts[:2]] <= [4, 4] and counts[2:7] == [b"0"] * 5 and b"too big" in outcome.stdout
    assert sum(1 for _ in Path("/tmp").iterdir()) <= before + 50


def test_empty_files_are_counted_too() -> None:
    code = """
import os
for folder in ("/home", "/tmp"):
    count = 0
    try:
        while count < 3000:
            os.mkdir(f"{folder}/{count}")
            count += 1
    except OSError:
        pass
    print(count)
"""
    counts = [int(word) for word in inside(code, files=500).stdout.split()]
    assert all(490 <= count <= 500 for count in counts) and len(counts) == 2


def test_links_for_output_files_hand_out_nothing() -> None:
    code = """
import os
os.symlink("/usr/bin/env", "link")
os.symlink("/usr", "folder")
os.mkfifo("fifo")
os.mkdir("real")
open("real/kept", "w").write("kept")
os.symlink("real", "way")
open("large", "wb").write(bytes(2000))
"""
    wanted = ("link", "folder/bin/env", "fifo", "way/kept", "real", "missing", "large", "real/kept")
    outcome = inside(code, wanted=wanted, file_bytes=2000)
    assert outcome.files == {"real/kept": b"kept", "large": bytes(2000)}


def test_a_race_for_an_output_file_is_over_before_it_is_read() -> None:
    code = """
import os
if os.fork() == 0:
    os.setsid()
    open("plain", "w").write("plain")
    while True:
        for source in ("plain", "/proc/self/environ", "/usr/bin/env"):
            os.symlink(source, "new"); os.replace("new", "out")
        os.link("plain", "new"); os.replace("new", "out")
import time
time.sleep(0.3)
"""
    for _ in range(3):
        assert inside(code, wanted=("out",), processes=3).files in ({}, {"out": b"plain"})


def test_a_process_that_would_outlive_its_sandbox_does_not() -> None:
    marker = f"zombie-of-{os.getpid()}"
    code = f"""
import os, signal, sys
for number in range(1, 32):
    if number not in (9, 19):
        signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(6000)", "{marker}"])
        os._exit(0)
"""
    assert inside(code, processes=9).ended == "exit"
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if marker in read(path)]


def test_its_watcher_can_be_neither_traced_nor_read() -> None:
    code = """
import ctypes, os
parent, libc = os.getppid(), ctypes.CDLL(None, use_errno=True)
print("TRACED" if libc.ptrace(16, parent, 0, 0) == 0 else "")
for name in ("mem", "environ", "fd/1", "fd/3", "fd/4", "maps"):
    try:
        print("READ", name, open(f"/proc/{parent}/{name}", "rb").read(9))
    except OSError:
        pass
"""
    said = inside(code).stdout
    assert b"TRACED" not in said and b"READ" not in said


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output_is_stopped(stream: int) -> None:
    outcome = inside(f"import os\nwhile True: os.write({stream}, b'x' * 65536)", output_bytes=MIB)
    assert outcome.ended == "output" and outcome.status is None
    assert len(outcome.stdout) + len(outcome.stderr) == MIB


def test_output_is_bytes_and_comes_as_it_is() -> None:
    outcome = inside(
        "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 9)\nsys.stderr.buffer.write(b'\\x1b]0;\\xff')"
    )
    assert outcome.stdout == bytes(range(256)) * 9 and outcome.stderr == b"\x1b]0;\xff"


@pytest.mark.parametrize(
    ("target", "ended"), [("os.getppid()", "killed"), ("-1", "killed"), ("1", "exit"), ("OUTSIDE", "exit")]
)
def test_signals_reach_nobody_outside(target: str, ended: str) -> None:
    target = target.replace("OUTSIDE", str(os.getpid()))
    code = (
        f"import os, time\ntry: os.kill({target}, 9)\nexcept OSError: pass\nelse: time.sleep({int(ended == 'killed')})"
    )
    outcome = inside(code, wall_seconds=5)
    assert outcome.ended == ended and (ended == "exit") == (outcome.status == 0)


def test_a_watcher_that_is_stopped_is_timed_out() -> None:
    assert inside("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", wall_seconds=0.7).ended == "time"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os\nos._exit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os\nos.kill(os.getpid(), 15)", -15),
        ('print(\'{"status": 0, "files": {"x": "eA=="}}\')\nraise SystemExit(1)', 1),
        ("while True: pass", -9),
    ],
)
def test_a_status_is_the_command_s_own(code: str, status: int) -> None:
    outcome = inside(code, wanted=("x",), cpu_seconds=1)
    assert (outcome.ended, outcome.files) == ("exit", {}) and outcome.status in (
        status,
        -24 if status == -9 else status,
    )


def test_the_code_inside_has_no_rights() -> None:
    code = (
        "import os\nprint(os.getuid(), *[line.split()[1] for line in open('/proc/self/status') if line[:3] == 'Cap'])"
    )
    uid, *held = inside(code).stdout.decode().split()
    assert int(uid) != 0 and set(held[:3] + held[4:]) == {"0" * 16}
    assert not as_root() or int(uid) > 65535


def test_the_harness_on_disk_cannot_be_changed() -> None:
    folder = Path(r2v.__file__).parent / "sandbox"
    before = {path.name: path.read_bytes() for path in folder.glob("*.py")}
    assert harmless(f"open({str(folder / 'wire.py')!r}, 'a').write('x')")
    assert harmless(f"open({python()!r}, 'ab').write(b'x')")
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.py")}
