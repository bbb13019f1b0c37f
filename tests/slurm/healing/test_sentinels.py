"""Notification of a failure that nothing heals: its recipients, its text, and the secrets that stay out of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from r2v.cli import main as cli
from r2v.slurm.chain.chain import Attempt, ChainJob
from r2v.slurm.healing.sentinels import notify
from r2v.slurm.site import site_profile
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

NAME = "desk_noisy"
SECRET = "T0KEN"


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the URL of a webhook on this machine and the list of JSON bodies it has received."""
    bodies: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{SECRET}", bodies
        server.shutdown()
        thread.join()


def with_failure(faked: Faked, kind: str, rc: int, site: str) -> None:
    """Make a chain whose bc has failed with this kind and code, on a site with this profile."""
    path = faked.root / site_profile.SITE
    path.parent.mkdir(parents=True)
    path.write_text(site)
    faked.chain(
        bc=ChainJob(
            needs=(), command=("train_policy",), script="", attempts=(Attempt(id="104", resources={"mem": "1G"}),)
        )
    )
    faked.failed("104", kind, "ValueError: the answer is 43", rc)
    faked.answer()


def test_who_is_named_is_told_once_and_the_address_is_told_to_nobody(
    faked: Faked,
    webhook: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, bodies = webhook
    monkeypatch.setenv("R2V_HOOK", url)
    with_failure(faked, "bug", 1, "mail: me@site\nwebhook: R2V_HOOK\n")
    assert cli.main(["heal", NAME, "bc"]) == 1, "which has Slurm write the mail"
    (body,) = bodies
    assert {key: body[key] for key in ("chain", "job", "kind")} == {"chain": NAME, "job": "bc", "kind": "bug"}
    assert "the answer is 43" in body["line"] and "desk_noisy: bc failed (bug)" in body["text"]
    said = capsys.readouterr()
    files = "".join(path.read_text() for path in Path("outputs").rglob("*.json*"))
    assert SECRET not in said.out + said.err + files


def test_a_failure_that_is_healed_tells_nobody(
    faked: Faked, webhook: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, bodies = webhook
    monkeypatch.setenv("R2V_HOOK", url)
    with_failure(faked, "host_oom", 137, "mail: me@site\nwebhook: R2V_HOOK\n")
    assert cli.main(["heal", NAME, "bc"]) == 0
    assert not bodies


def test_a_webhook_that_does_not_answer_is_a_line_without_its_address(
    faked: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (f"http://127.0.0.1:9/{SECRET}", SECRET):
        monkeypatch.setenv("R2V_HOOK", url)
        if not (faked.root / site_profile.SITE).exists():
            with_failure(faked, "bug", 1, "webhook: R2V_HOOK\n")
            assert cli.main(["heal", NAME, "bc"]) == 0
        else:
            assert notify(NAME, "bc") == 0
        said = capsys.readouterr().err
        assert "webhook failed" in said and SECRET not in said
