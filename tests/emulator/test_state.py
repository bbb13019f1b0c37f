"""State and ledger outlive the emulator, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from r2v.cli.main import main
from r2v.emulator import FAULT_POINTS, Emulator, Fault, read_ledger
from r2v.errors import EnvironmentFault, LeaseConflict, UsageError
from tests.emulator.clients import (
    anthropic_client,
    custom_id,
    finish_anthropic,
    finish_openai,
    line,
    lines_openai,
    openai_client,
    submit_anthropic,
    submit_openai,
    upload,
)
from tests.paid import paid_ids


def test_a_restarted_emulator_knows_its_batches_files_and_faults(tmp_path: Path) -> None:
    faults = [Fault("commit_then_500", on="openai.create", at=1)]
    with Emulator(folder=tmp_path, faults=faults) as emulator:
        with pytest.raises(openai.InternalServerError):
            submit_openai(openai_client(emulator), metadata={"batch_key": "k"})
        other = submit_anthropic(anthropic_client(emulator)).id
    with Emulator(folder=tmp_path, faults=faults) as emulator:
        client, claude = openai_client(emulator), anthropic_client(emulator)
        [found] = client.batches.list()
        assert found.metadata == {"batch_key": "k"} and len(client.files.list().data) == 1
        last = finish_openai(client, found.id)[-1]
        assert len(lines_openai(client, last.output_file_id)) == 4
        finish_anthropic(claude, other)
        assert len(list(claude.messages.batches.results(other))) == 4
        fresh = submit_openai(client)
        assert fresh.id != found.id
        assert paid_ids(emulator.ledger()) == {custom_id(i): 3 for i in range(4)}


def test_states_do_not_go_back_over_a_restart(tmp_path: Path) -> None:
    with Emulator(folder=tmp_path) as emulator:
        client = openai_client(emulator)
        name = submit_openai(client).id
        assert [client.batches.retrieve(name).status for _ in range(2)] == ["in_progress", "finalizing"]
    with Emulator(folder=tmp_path) as emulator:
        assert openai_client(emulator).batches.retrieve(name).status == "completed"


def test_half_a_line_in_the_ledger_and_bills_of_a_batch_that_never_came_are_dropped(tmp_path: Path) -> None:
    with Emulator(folder=tmp_path) as emulator:
        client = openai_client(emulator)
        submit_openai(client, 2)
        [batch] = emulator.batches()
    (tmp_path / "batches" / f"{batch.id}.json").unlink()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"event":"bill","pro')
    with Emulator(folder=tmp_path) as emulator:
        assert not emulator.ledger().bills and not list(openai_client(emulator).batches.list())
        submit_openai(openai_client(emulator), 1)
        assert paid_ids(emulator.ledger()) == {custom_id(0): 1}


def test_deleted_files_are_gone(tmp_path: Path) -> None:
    with Emulator(folder=tmp_path) as emulator:
        client = openai_client(emulator)
        client.files.delete(upload(client, [line(0)]))
        assert client.files.list().data == [] and list((tmp_path / "files").iterdir()) == []


def test_one_emulator_serves_a_folder_and_one_a_port(tmp_path: Path) -> None:
    with Emulator(folder=tmp_path) as emulator:
        with pytest.raises(LeaseConflict), Emulator(folder=tmp_path):
            pass
        with pytest.raises(EnvironmentFault, match="name another"), Emulator(port=emulator.port):
            pass
    with pytest.raises(UsageError, match="65535"), Emulator(port=70_000):
        pass


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--answer", "gme"], "did you mean game"),
        (["--limits", "openai.request=3"], "did you mean requests"),
        (["--limits", "openai=3"], "names a group"),
        (["--timing", "late=soon"], "not a number"),
        (["--faults", "comit_then_500"], "did you mean commit_then_500"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_a_line(
    options: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["providers", "emulate", *options]) == 2
    assert hint in capsys.readouterr().err


def test_faults_list_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["providers", "emulate", "--faults", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in FAULT_POINTS)


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Start the command as a process of its own; yield it and the variables that it asks to export."""
    running = subprocess.Popen(
        [sys.executable, "-m", "r2v", "providers", "emulate", "--port", "0", *options],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "."},
    )
    try:
        assert running.stdout is not None
        exports: dict[str, str] = {}
        while len(exports) < 4 and (said := running.stdout.readline()):
            if said.strip().startswith("export "):
                exports |= dict(pair.split("=", 1) for pair in said.split()[1:])
        yield running, exports
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def client_of(exports: dict[str, str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=exports["OPENAI_BASE_URL"], api_key=exports["OPENAI_API_KEY"], max_retries=0)


def test_a_killed_process_is_continued_by_the_same_command(tmp_path: Path) -> None:
    options = (
        "--folder",
        str(tmp_path / "state"),
        "--ledger",
        str(tmp_path / "bills.jsonl"),
        "--faults",
        "commit_then_reset/create@1",
        "--limits",
        "openai.requests=3",
        "--timing",
        "late=1",
        "polls=1",
    )
    with process(*options) as (running, exports):
        with pytest.raises(openai.APIConnectionError):
            submit_openai(client_of(exports), 3)
        running.send_signal(signal.SIGKILL)
        assert running.wait(20) == -signal.SIGKILL
    with process(*options) as (running, exports):
        client = client_of(exports)
        [found] = client.batches.list()
        last = finish_openai(client, found.id)[-1]
        assert last.status == "completed" and len(lines_openai(client, last.output_file_id)) == 3
        assert finish_openai(client, submit_openai(client, 4).id)[-1].status == "failed"
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=20)
        assert running.returncode == 0 and "billed 3 requests (3 in batches, 0 at once)" in said
    assert paid_ids(read_ledger(tmp_path / "bills.jsonl")) == {custom_id(i): 1 for i in range(3)}


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    with Emulator(folder=tmp_path) as emulator:
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="sk-very-secret")
        finish_openai(client, submit_openai(client).id)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"very-secret" in path.read_bytes()]


def test_the_command_line_can_describe_emulate_without_loading_the_server() -> None:
    heavy = ("asyncio", "http.server", "omegaconf", "openai", "anthropic", "numpy")
    code = (
        "import sys, argparse, r2v.cli.providers as c; "
        "c.add_commands(argparse.ArgumentParser().add_subparsers()); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
