"""`r2v serve` and `r2v record` as commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from r2v.cli.main import main
from r2v.emulator import Emulator

MODEL = ("--llm", "openai:gpt-6-luna", "--overrides", "teacher.max_usd=50")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Emulator:
    monkeypatch.chdir(tmp_path)
    with Emulator() as emulator:
        monkeypatch.setenv("OPENAI_BASE_URL", emulator.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield emulator


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_when_told(
    number: signal.Signals, provider: Emulator, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "r2v", "serve", "--record", *MODEL, "serve.port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ, cwd=tmp_path) as server:
        assert server.stdout is not None
        first, second = server.stdout.readline(), server.stdout.readline()
        url = second.split("OPENAI_BASE_URL=")[1].split("/v1")[0]
        assert f"ANTHROPIC_BASE_URL={url} " in first and "data/served/default/keys" in first
        key = subprocess.run(
            ["bash", "-c", f"{second}echo $OPENAI_API_KEY"], capture_output=True, text=True, cwd=tmp_path
        )
        body = {"model": "llm", "messages": [{"role": "user", "content": "x"}]}
        headers = {"authorization": f"Bearer {key.stdout.strip()}"}
        assert httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        server.send_signal(number)
        assert server.wait() == 0
    assert len(provider.ledger().bills) == 1


def test_record_ends_as_its_command_does(provider: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["record", *MODEL, "--task", "t", "--", "bash", "-c", "echo $OPENAI_BASE_URL $R2V_TASK; exit 7"]) == 7
    out = capfd.readouterr()
    assert out.out.startswith("http://127.0.0.1:") and out.out.strip().endswith("/v1 t")
    assert "t: failed (exit 7), 0 requests, $0.0000" in out.err


@pytest.mark.parametrize("words,says", [
    (("serve",), "add --record"),
    (("serve", "--record", *MODEL, "serve.shadow=true"), "serve.shadow=true: without a bundle there is no router"),
    (("serve", "--record"), "name a model, such as --llm"),
    (("serve", "--record", "--llm", "gpt-6-luna"), "written provider:model"),
    (("serve", "--record", "--llm", "openai:no-such-model"), "no price"),
    (("serve", "--record", "--llm", "anthropic:claude-opus-5-5"), "ANTHROPIC_API_KEY is not set"),
    (("serve", "--record", *MODEL, "serve.port=70000"), "serve.port"),
    (("serve", "--record", *MODEL, "serve.host=203.0.113.1"), "cannot be listened on"),
    (("record", *MODEL), "CMD"),
    (("record", *MODEL, "--", "no-such-program"), "no such command"),
])  # fmt: skip
def test_bad_words_are_one_line(
    words: tuple[str, ...],
    says: str,
    provider: Emulator,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert main([*words]) in (2, 5)
    err = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("sending a key")]
    assert len(err) == 1 and says in err[0]


def test_a_server_in_front_of_itself_is_refused(
    provider: Emulator, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8484/v1")
    assert main(["serve", "--record", *MODEL]) == 2
    assert "this server's own" in capfd.readouterr().err


def test_two_servers_of_one_name_are_refused(provider: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    inner = [sys.executable, "-m", "r2v", "record", *MODEL, "--", "true"]
    assert main(["record", *MODEL, "--", "env", "OPENAI_API_KEY=x", *inner]) == 6


TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "sklearn", "scipy", "pyarrow", "safetensors")
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({TRAIN}))
from r2v.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without_train(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the packages of the extra [train]."""
    return subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False)


def test_recording_importing_and_reports_need_nothing_of_train(provider: Emulator, tmp_path: Path) -> None:
    script = (
        "import json, os, urllib.request as u; "
        "u.urlopen(u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', json.dumps({'model': 'llm', "
        "'messages': [{'role': 'user', 'content': 'x'}]}).encode(), "
        "{'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}))"
    )
    done = without_train("record", *MODEL, "--", sys.executable, "-c", script)
    assert done.returncode == 0 and "1 requests" in done.stderr, done.stderr
    done = without_train("import", "data/served/default")
    assert done.returncode == 0 and "trajectories=1 " in done.stderr, done.stderr


def test_a_command_that_needs_train_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = without_train("train_policy", "--stage", "bc")
    assert done.returncode in (3, 5) and len(done.stderr.strip().splitlines()) == 1
    done = without_train("train_hierarchical")
    assert done.returncode == 5 and "pip install 'r2v[train]'" in done.stderr and "Traceback" not in done.stderr
