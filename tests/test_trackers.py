"""Figures reach wandb and the other trackers under their names; a tracker's failure never harms a stage."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.config.execution import TRACKERS
from r2v.trackers import wandb_mode

ROOT = Path(__file__).parents[1]
STAGE = """
import sys
from pathlib import Path
from r2v import log, trackers
from r2v.progress import Progress
log.setup()
trackers.TRACKER_PATIENCE = float(sys.argv[2]) if len(sys.argv) > 2 else 40.0
run = trackers.TrackedRun(
    trackers=None if sys.argv[1] == "auto" else tuple(sys.argv[1].split(",")),
    project="r2v-agent", id="desk_noisy-bc-0a", job="bc", group="desk_noisy",
    config={"training.lr": 0.25, "env.options.password": "open sesame", "url": "http://me:pw@host/", "names": ["a"]},
    folder=Path("logs"),
)
with trackers.tracked(run) as at_end:
    with Progress("cloning", 2) as bar:
        bar.advance(loss=1.0)
        bar.advance(loss=0.5)
    for iteration in range(2):
        log.curve({"iteration": iteration, "acc/turn2": 0.25 + iteration / 4, "said": "no number"})
    at_end({"trained": 1, "report": {"auroc": 0.9}, "bad": float("nan")})
print("the work is done", "wandb" in sys.modules)
"""


def stage(folder: Path, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**inherited, "PYTHONPATH": str(ROOT), "NETRC": str(folder / "no-netrc"), **values}
    return subprocess.run(
        [sys.executable, "-c", STAGE, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_without_a_tracker_nothing_is_imported_or_written(tmp_path: Path) -> None:
    for words, values in (("auto", {}), ("wandb", {"WANDB_MODE": "disabled"})):
        assert stage(tmp_path, words, **values).stdout == "the work is done False\n"
    assert not (tmp_path / "logs").exists()


def test_event_files_of_tensorboard_hold_the_same_figures_and_a_missing_tracker_is_one_line(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ranks = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    done = stage(tmp_path, "comet_ml,tensorboard", **ranks)
    line = "tracker not installed, no figures sent: tracker=comet_ml remedy=pip install comet_ml"
    assert (done.stdout, done.stderr) == ("the work is done False\n", line + "\n")
    (folder,) = (tmp_path / "logs" / "tensorboard" / "desk_noisy-bc-0a").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    figures = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert {tag: values for tag, values in figures.items() if not tag.startswith("cloning/")} == {
        "iteration": [(1, 0.0), (2, 1.0)],
        "acc/turn2": [(1, 0.25), (2, 0.5)],
        "trained": [(3, 1.0)],
        "report/auroc": [(3, pytest.approx(0.9))],
    }
    assert figures["cloning/loss"] == [(0, 0.5)] and figures["cloning/done"] == [(0, 2.0)]
    (parameters,) = folder.glob("*/hparams.yml")
    assert "training.lr: 0.25" in parameters.read_text()
    assert not [path for path in folder.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]


RAISES = ("raise OSError('no disk')", "OSError: no disk")
HANGS = ("import time; time.sleep(600)", "it did not end in time")
DIES = ("import os; os.abort()", "ended by signal 6")


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        *(("wandb", *kind) for kind in (RAISES, HANGS, DIES)),
        *(pytest.param("tensorboard", *kind, marks=pytest.mark.whole) for kind in (RAISES, HANGS, DIES)),
    ],
)
def test_whatever_a_tracker_does_the_work_is_done_and_its_figures_are_kept(
    name: str, broken: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "lib" / name).mkdir(parents=True)
    (tmp_path / "lib" / name / "__init__.py").write_text(broken + "\n")
    values = {"WANDB_MODE": "offline", "PYTHONPATH": f"{tmp_path / 'lib'}:{ROOT}"}
    done = stage(tmp_path, name, "2" if "sleep" in broken else "40", **values)
    assert (done.returncode, done.stdout) == (0, "the work is done False\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tracker incomplete, figures kept: tracker={name} reason={reason} remedy=")
    (curves,) = (tmp_path / "logs" / "trackers").glob("*.jsonl")
    assert "cloning/loss" in curves.read_text() and f"-m r2v.trackers {curves.relative_to(tmp_path)} {name}" in line


@pytest.mark.whole
def test_figures_that_were_kept_are_sent_again_by_the_command_of_the_line(tmp_path: Path) -> None:
    curves = tmp_path / "kept.jsonl"
    run = {"project": "p", "id": "i", "job": "bc", "group": "g", "config": {}, "folder": "logs", "mode": "offline"}
    curves.write_text("".join(json.dumps(line) + "\n" for line in ({"run": run}, {"log": {"loss": 1.0}}, {"end": 0})))
    (tmp_path / "logs").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "r2v.trackers", str(curves), "wandb"]
    assert subprocess.run(words, cwd=tmp_path, env=environment).returncode == 0
    assert list((tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb"))


def test_a_tracker_sees_no_key_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "lib" / "wandb").mkdir(parents=True)
    script = "import os; raise OSError(sorted(n for n in os.environ if n.endswith('_API_KEY')))"
    (tmp_path / "lib" / "wandb" / "__init__.py").write_text(script + "\n")
    keys = {"OPENAI_API_KEY": "not for trackers", "WANDB_API_KEY": "for this tracker"}
    done = stage(tmp_path, "wandb", PYTHONPATH=f"{tmp_path / 'lib'}:{ROOT}", **keys)
    assert "reason=OSError: ['WANDB_API_KEY'] remedy=" in done.stderr


def test_a_login_alone_turns_wandb_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert [wandb_mode(mode) for mode in ("auto", "offline", "disabled")] == ["disabled", "offline", "disabled"]
    assert wandb_mode("online") == "offline", "without a key, and a line says so"
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123456789\n")
    (tmp_path / "netrc").chmod(0o600)
    assert [wandb_mode(mode) for mode in ("auto", "online")] == ["online", "online"]
    for setting, meant in (
        ("disabled", "disabled"),
        ("offline", "offline"),
        ("dryrun", "offline"),
        ("no such", "disabled"),
    ):
        monkeypatch.setenv("WANDB_MODE", setting)
        assert wandb_mode("auto") == meant


@pytest.mark.whole
def test_names_are_those_of_accelerate() -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(TRACKERS) == set(LOGGER_TYPE_TO_CLASS)


class WandbServer(http.server.BaseHTTPRequestHandler):
    """The part of wandb's server that `wandb sync` needs."""

    protocol_version = "HTTP/1.1"
    received: bytes = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).received += body if "file_stream" in self.path else b""
        payload = json.loads(body) if self.path == "/graphql" else {"query": "", "variables": {}}
        values = payload["variables"]
        data: dict[str, object] = {}
        if "upsertBucket" in payload["query"]:
            project = {"id": "P", "name": values["project"], "entity": {"id": "E", "name": "me"}}
            bucket = {"id": "B", "name": values["name"], "displayName": "bc", "config": "{}", "project": project}
            data["upsertBucket"] = {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}
        if "createRunFiles" in payload["query"]:
            at = f"http://{self.headers['Host']}/upload/"
            files = [{"name": name, "uploadUrl": at + name} for name in values["files"]]
            data["createRunFiles"] = {"runID": "B", "uploadHeaders": [], "files": files}
        self._reply({"data": data} if payload["query"] else {})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._reply({})

    def _reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def wandb_url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WandbServer) as server:
        server.handle_error = lambda request, address: None  # type: ignore[method-assign]  # wandb resets connections
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_offline_figures_land_under_logs_wandb_and_are_synced_as_the_seed_types_it(
    wandb_url: str, tmp_path: Path
) -> None:
    done = stage(tmp_path, "auto", WANDB_MODE="offline")
    assert done.stdout == "the work is done False\n", done.stderr
    (written,) = (tmp_path / "logs" / "wandb").glob("offline-run-*-desk_noisy-bc-0a/*.wandb")
    content = written.read_bytes()
    assert content.count(b"cloning/loss") >= 2 and content.count(b"acc/turn2") >= 2
    assert b"report/auroc" in content and b"desk_noisy" in content and b"training" in content
    assert b"sesame" not in content and b"me:pw" not in content
    assert not list((tmp_path / "logs" / "trackers").iterdir()), "all of it was taken"
    (typed,) = [line for line in (ROOT / "tests/seeds/seed_003.md").read_text().splitlines() if "wandb sync" in line]
    environment = {**os.environ, "WANDB_BASE_URL": wandb_url, "WANDB_API_KEY": "0" * 40}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "Finished syncing logs/wandb/offline-run-" in done.stderr, done.stderr
    received = WandbServer.received.decode()
    assert r"\"report/auroc\":0.9" in received and r"\"acc/turn2\":0.25" in received
    assert list((tmp_path / "logs" / "wandb").glob("offline-run-*/*.synced"))
