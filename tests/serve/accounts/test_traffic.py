"""Files of a server, whole and damaged: the log, recorded sessions, keys."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from r2v.data.interchange.importing import ImportRequest, import_trajectories
from r2v.data.interchange.served import recorded_turns, served_sessions
from r2v.data.registry import DataRegistry
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.serve.accounts.traffic import Recorder, TrafficLog, read_traffic, session_path
from r2v.serve.keys import server_keys
from r2v.serve.transport.endpoints import PATHS
from tests.serve.accounts.test_books import booked
from tests.serve.stub import Seen, Step, reply, served, stub
from tests.serve.test_forwarding import post
from tests.serve.wires import USD, body, whole

ROWS = [{"kind": "turn", "n": number} for number in range(5)]


def written(folder: Path) -> Path:
    log = TrafficLog(folder)
    assert not list(log.open())
    for row in ROWS:
        log.append(row)
    log.close()
    return log.path


def test_a_log_goes_on_where_it_ended_and_cuts_a_torn_line(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"kind":"tu')
    assert list(read_traffic(tmp_path)) == ROWS
    log = TrafficLog(tmp_path)
    assert list(log.open()) == ROWS
    log.append({"n": 5})
    log.close()
    assert [row["n"] for row in read_traffic(tmp_path)] == [0, 1, 2, 3, 4, 5] and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["altered", "lost", "moved", "no JSON"])
def test_an_altered_line_is_named_and_nothing_is_overwritten(how: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = {"altered": lines[2].replace(b"2", b"7", 1), "no JSON": b"{\n"}.get(how, lines[2])
    lines = {"lost": [*lines[:2], *lines[3:]], "moved": [*lines[:2], lines[3], lines[2], lines[4]]}.get(how, lines)
    path.write_bytes(b"".join(lines))
    before = path.read_bytes()
    for read in (lambda: list(read_traffic(tmp_path)), lambda: list(TrafficLog(tmp_path).open())):
        with pytest.raises(InputError, match=r"traffic.jsonl:[34]: does not follow"):
            read()
    assert path.read_bytes() == before


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    path = written(tmp_path)
    log = TrafficLog(tmp_path)
    assert list(log.open()) == ROWS
    with full_disk(path.stat().st_size + 10), pytest.raises(EnvironmentFault, match="cannot write"):
        log.append({"n": "lost"})
    log.append({"n": 5})
    log.close()
    assert [row["n"] for row in read_traffic(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_a_full_disk_while_a_reply_is_on_its_way_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = ExitStack()

    def answer(seen: Seen) -> list[Step]:
        if len(provider.seen) == 1:
            disk.enter_context(full_disk(10))
        return reply(whole("chat"))

    with disk, stub(answer) as provider:
        with served(tmp_path, provider.url) as server:
            assert post(server.url, PATHS["chat"], body("chat"), server.auth).status_code == 200
            refused = post(server.url, PATHS["chat"], body("chat"), server.auth)
            assert refused.status_code == 500 and "cannot write" in refused.json()["error"]["message"]
            disk.close()
            assert post(server.url, PATHS["chat"], body("chat"), server.auth).status_code == 200
        with served(tmp_path, provider.url) as server:
            assert post(server.url, PATHS["chat"], body("chat"), server.auth).status_code == 200
    assert caplog.text.count("cannot write") == 2 and "Traceback" not in caplog.text
    assert booked(server) == (pytest.approx(3 * USD), 0.0) and len(provider.seen) == 3


def test_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="r2v serve"):
        list(read_traffic(tmp_path))


@pytest.mark.parametrize("how", ["bit flip", "no frame"])
def test_a_damaged_session_is_refused_by_import(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    row = {
        "session": "s",
        "key": "k",
        "turn": 1,
        "wire": "chat",
        "stream": False,
        "whole": True,
        "usd": 0.1,
        "tokens": {},
    }
    row |= {"model": "m", "answered_by": "m"}
    request = json.dumps({"messages": [{"role": "user", "content": "x" * 500}]}).encode()
    reply = json.dumps({"choices": [{"message": {"role": "assistant", "content": "y"}}]}).encode()
    Recorder(tmp_path).write("s", row, request, reply)
    path = session_path(tmp_path, "s")
    assert len(list(served_sessions(tmp_path))) == 1
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes({"bit flip": bytes(content), "no frame": b"{}\n"}[how])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        import_trajectories(ImportRequest(sources=(str(tmp_path),)), DataRegistry())


def test_sessions_are_files_for_their_owner_alone(tmp_path: Path) -> None:
    Recorder(tmp_path).write("../../x", {}, b"{}", b"\xff")
    (path,) = (tmp_path / "sessions").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_keys_are_made_once_and_bad_ones_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = server_keys(tmp_path)
    assert path is not None and path.stat().st_mode & 0o777 == 0o600
    first = path.read_text()
    keys, _ = server_keys(tmp_path)
    assert path.read_text() == first
    key = first.split()[1].encode()
    assert keys.name_of([(b"Authorization", b"bearer  " + key)]) == keys.name_of([(b"X-Api-Key", key)]) == "default"
    path.write_text(f"# mine\nlaptop {'a' * 20}\nteam {'b' * 20}\n")
    keys, _ = server_keys(tmp_path)
    assert keys.name_of([(b"x-api-key", b"wrong"), (b"authorization", b"Bearer " + b"b" * 20)]) == "team"
    for bad in ("short abc", "one two three", "", "noname"):
        path.write_text(bad + "\n")
        with pytest.raises(InputError, match=r"keys"):
            server_keys(tmp_path)
    monkeypatch.setenv("R2V_SERVE_KEY", "short")
    with pytest.raises(UsageError, match="R2V_SERVE_KEY"):
        server_keys(tmp_path)
    monkeypatch.setenv("R2V_SERVE_KEY", "c" * 20)
    assert server_keys(tmp_path)[1] is None


def write(folder: Path, *turns: int) -> Path:
    recorder = Recorder(folder)
    for turn in turns:
        recorder.write("s", {"turn": turn}, b"{}", b"text")
    return session_path(folder, "s")


@pytest.mark.parametrize("lost", [1, 5, 1000])
def test_a_torn_frame_hides_nothing_that_follows(lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write(tmp_path, 1, 2).stat().st_size
    path = write(tmp_path, 3)
    with path.open("r+b") as file:
        file.truncate(max(whole + 1, path.stat().st_size - lost))
    assert [row["turn"] for row in recorded_turns(path)] == [1, 2]
    assert "incomplete last turn omitted" in caplog.text
    write(tmp_path, 4, 5)
    assert [row["turn"] for row in recorded_turns(path)] == [1, 2, 4, 5]


def test_a_file_that_holds_nothing_yet_is_written(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    path.write_bytes(b"")
    assert list(recorded_turns(path)) == []
    write(tmp_path, 2)
    assert [row["turn"] for row in recorded_turns(path)] == [2]


def test_a_damaged_file_is_refused_by_readers_and_grows_on(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 2)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        list(recorded_turns(path))
    assert write(tmp_path, 3).stat().st_size > len(content)
