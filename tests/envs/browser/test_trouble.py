"""Trouble in the middle of a collection: every episode has an end, faults are distinguished from failures, and none is
lost."""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from r2v.cli.main import main as r2v
from r2v.envs.browser.benchmark import BrowserBenchmark
from r2v.envs.browser.miniwob import MiniWoB
from tests import trust
from tests.envs.browser import real_browser

WORDS = ["collect", "--seeds", "1", "--overrides", "env.benchmark=miniwob", "inference.max_steps=3"]
WORDS += ["rollout.max_conversations=2"]  # and as many browsers


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve MiniWoB's pages, count them, and log nothing. The event planned for a page happens before its answer."""

    pages = itertools.count(1)
    at: dict[int, Callable[[int], None]] = {}
    down_at = 0
    stuck = ""
    over = threading.Event()

    def do_GET(self) -> None:
        if self.path.endswith(".html"):
            number = next(Quiet.pages)
            Quiet.at.get(number, lambda port: None)(self.client_address[1])
            if number == Quiet.down_at:
                return self.send_error(503)
        if Quiet.stuck and Quiet.stuck in self.path:
            Quiet.over.wait()
            return  # the client has gone
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A server whose backlog holds the connections that two browsers open."""

    request_queue_size = 64


class Site:
    """A server of MiniWoB's pages."""

    def __init__(self) -> None:
        spec = find_spec("miniwob")
        assert spec is not None and spec.submodule_search_locations
        folder = Path(spec.submodule_search_locations[0]) / "html"
        self.server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def browser_of(port: int) -> psutil.Process:
    """Return the Chromium that owns a local port."""
    (asks,) = {one.pid for one in psutil.net_connections("tcp") if one.laddr and one.laddr.port == port}
    process = psutil.Process(asks)
    return [one for one in [process, *process.parents()] if one.name().startswith("chrom")][-1]


def kill_browser(port: int) -> None:
    browser_of(port).kill()


def kill_worker(port: int) -> None:
    next(one for one in browser_of(port).parents() if any("worker/boot.py" in word for word in one.cmdline())).kill()


def collected(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the manifest and the episodes of the only run."""
    (run,) = folder.glob("data/runs/*")
    lines = (run / "trajectories.jsonl").read_text().splitlines()
    return json.loads((run / "run_manifest.json").read_text()), [json.loads(line) for line in lines]


@real_browser
def test_a_worker_a_browser_and_a_site_fail_in_the_middle_and_every_episode_has_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = 50 if trust.whole_suites else 15
    site = Site()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIWOB_URL", f"http://127.0.0.1:{site.port}/miniwob/")
    monkeypatch.setattr(Quiet, "pages", itertools.count(1))
    monkeypatch.setattr(Quiet, "at", {episodes // 5: kill_worker, 2 * episodes // 5: kill_browser})
    monkeypatch.setattr(Quiet, "down_at", 3 * episodes // 5)
    try:
        code = r2v(
            [*WORDS, f"env.options={{names: click-test, instances: {episodes * 2}}}", f"data.num_episodes={episodes}"]
        )
    finally:
        site.stop()
    assert code == 0
    manifest, records = collected(tmp_path)
    assert len(records) == episodes == manifest["n_episodes"] and manifest["status"] == "done"
    assert len({record["episode_id"] for record in records}) == episodes
    faults = [record["env_fault"] for record in records if record["env_fault"] is not None]
    assert len(faults) == manifest["n_env_faults"] == episodes - manifest["n_success"]
    assert len(faults) == 3
    print(f"{episodes} ends: {manifest['n_success']} succeeded, 0 failed, {len(faults)} faults: {sorted(set(faults))}")


@real_browser
def test_a_page_that_never_loads_and_a_task_that_is_not_there_cost_their_episodes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIWOB_URL", f"http://127.0.0.1:{site.port}/miniwob/")
    monkeypatch.setattr(Quiet, "stuck", "click-button.html")
    monkeypatch.setattr(Quiet, "over", threading.Event())
    ids = "browsergym/miniwob.click-test browsergym/miniwob.no-such-task browsergym/miniwob.click-button"
    words = ["env.benchmark=tests.envs.browser.test_trouble:Clicking", f"env.options={{ids: {ids}, instances: 2}}"]
    try:
        assert r2v([*WORDS, *words, "teacher.provider=scripted"]) == 0
    finally:
        Quiet.over.set()
        site.stop()
    manifest, records = collected(tmp_path)
    faults = {
        record["metadata"]["task_id"]: record["env_fault"] for record in records if record["env_fault"] is not None
    }
    assert manifest["status"] == "done" and manifest["n_success"] == len(records) - len(faults) > 0
    assert {task.split(".")[1] for task in faults} == {"no-such-task", "click-button"}
    assert all(fault.startswith("reset: ") for fault in faults.values())


class Clicking(BrowserBenchmark):
    """Any task of BrowserGym, with the experts of MiniWoB."""

    capabilities = MiniWoB.capabilities
    expert = staticmethod(MiniWoB.expert)


@real_browser
@pytest.mark.parametrize("lacks", ["browser", "extra"])
def test_what_is_not_installed_is_one_line_before_anything_is_begun(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if lacks == "browser":
        monkeypatch.delenv("R2V_BROWSER", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setitem(sys.modules, "browsergym", None)
    assert r2v(WORDS) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert {"browser": "install Debian's package chromium", "extra": "pip install -e '.[miniwob]'"}[lacks] in line
    assert list(tmp_path.iterdir()) == []
