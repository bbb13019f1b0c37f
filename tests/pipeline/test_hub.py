"""Bundles, runs and reports go to a hub and come back unchanged; a damaged one, or one with a key in it, is not
pushed."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from r2v.errors import InputError
from r2v.pipeline.hub import FILE_LIST, parcel_of
from r2v.report.build import REPORT_MARKER
from r2v.serve.bundle.manifest import BundleManifest, write_bundle_manifest
from r2v.storage.files import content_sha256
from r2v.storage.removal import OWN, make_own

ROOT = Path(__file__).parents[2]
TOKEN = "hf_" + "t" * 34
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub that a push and a pull need. Repositories are in memory: full name -> name -> content."""

    protocol_version = "HTTP/1.1"
    repositories: dict[str, dict[str, bytes]]
    objects: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == "/api/validate-yaml":
            return self._send({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send({"error": "Invalid credentials"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            full = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
            known = full in self.repositories
            self.repositories.setdefault(full, {})
            return self._send({"url": f"http://{self.headers['Host']}/{full}"}, 409 if known else 200)
        if path.endswith("/objects/batch"):
            base = f"http://{self.headers['Host']}/objects/"
            actions = [
                {**one, "actions": {"upload": {"href": base + one["oid"]}}} for one in json.loads(body)["objects"]
            ]
            return self._send({"transfer": "basic", "objects": actions})
        full = "/".join(path.split("/")[2:5])
        files = self.repositories[full]
        if "/preupload/" in path:
            modes = {True: "lfs", False: "regular"}
            names = [file["path"] for file in json.loads(body)["files"]]
            uploads = [
                {"path": name, "uploadMode": modes[name.endswith(".bin")], "shouldIgnore": False} for name in names
            ]
            return self._send({"files": uploads})
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
        return self._send(
            {
                "commitOid": COMMIT,
                "commitUrl": f"http://{self.headers['Host']}/{full.removeprefix('models/')}/commit/{COMMIT}",
                "success": True,
            }
        )

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[hashlib.sha256(body).hexdigest()] = body
        self._send({})

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[0] == "api"
        parts = parts[1:] if is_api else parts if parts[0] in ("datasets", "spaces") else ["models", *parts]
        full, rest = "/".join(parts[:3]), parts[3:]
        files = self.repositories.get(full)
        if files is None:
            return self._send({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if rest[:1] == ["tree"]:
            tree = [{"type": "file", "path": name, "oid": "0", "size": len(text)} for name, text in files.items()]
            return self._send(tree)
        if is_api:
            names = [{"rfilename": name} for name in files]
            return self._send({"id": "/".join(parts[1:3]), "sha": COMMIT, "private": False, "siblings": names})
        content = files["/".join(rest[2:])]
        return self._send(content, 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    do_HEAD = do_GET

    def _send(self, value: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.repositories, Hub.objects = {}, {}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run_all(folder: Path, *commands: str, **values: str) -> list[tuple[int, str]]:
    """Run commands of r2v in one process; return (exit code, lines) of each. A word NAME=VALUE before one sets a
    variable."""
    script = (
        "import os, sys\nfrom r2v.cli.main import main\n"
        "for line in sys.argv[1:]:\n"
        "    words = line.split()\n"
        "    while '=' in words[0]:\n"
        "        os.environ.update([words.pop(0).split('=')])\n"
        "    code = main(words)\n"
        "    print('\\nCODE', code, file=sys.stderr)\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, *commands],
        cwd=folder,
        env={**kept, **own, **values},
        capture_output=True,
        text=True,
    )
    parts = [part.strip() for part in done.stderr.split("\nCODE ")]
    codes = [int(part.split("\n")[0]) for part in parts[1:]]
    texts = [parts[0], *(part.partition("\n")[2].strip() for part in parts[1:])]
    assert len(codes) == len(commands), done.stderr
    return list(zip(codes, texts, strict=False))


def make_bundle(folder: Path) -> Path:
    (folder / "policy").mkdir(parents=True)
    (folder / "README.md").write_text("---\ntags: [r2v]\n---\n# Card\n")
    (folder / "policy" / "model.bin").write_bytes(b"\x00weights" * 100)
    hashes = {name: content_sha256(folder / name) for name in ("README.md", "policy/model.bin")}
    manifest = BundleManifest(
        format=1,
        r2v_version="0",
        benchmark="desk",
        benchmark_version="1",
        base_model="tiny",
        weights="full",
        feature_version="1",
        threshold=0.5,
        llm_call_rate=0.2,
        sources={},
        results_sha256=None,
        files=hashes,
    )
    write_bundle_manifest(folder, manifest)
    return folder


def make_report(folder: Path) -> Path:
    make_own(folder, REPORT_MARKER)
    (folder / "data").mkdir()
    (folder / "index.html").write_text("<h1>Report</h1>")
    (folder / "data" / "frontier.csv").write_text("x,y\n")
    (folder / OWN).write_text("report\nindex.html\ndata/frontier.csv\n")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_bundle_run_and_report_come_back_unchanged(hub: str, tmp_path: Path) -> None:
    bundle, report = make_bundle(tmp_path / "desk"), make_report(tmp_path / "page")
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Gone."}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    (tmp_path / "other").mkdir()
    assert run_all(tmp_path, "import chat.jsonl")[0][0] == 0
    (run,) = (tmp_path / "data" / "runs").iterdir()
    Hub.repositories["models/me/foreign"] = {"model.safetensors": b"mine"}
    done = run_all(
        tmp_path,
        "push desk me/desk --dry-run",
        "push desk me/desk",
        "HF_TOKEN=wrong push desk me/desk",
        f"HF_TOKEN={TOKEN} push desk me/desk",
        "push desk me/desk",
        f"push {run.name} me/chat",
        "push page spaces/me/page",
        "push desk me/foreign",
        "push desk me/desk --private",
        "pull me/desk other/desk",
        "pull me/desk other/desk",
        "pull spaces/me/page",
        "pull datasets/me/chat other/chat",
        "pull me/nothing",
        HF_ENDPOINT=hub,
    )
    assert [code for code, _ in done] == [0, 5, 5, 0, 0, 0, 0, 3, 3, 0, 3, 0, 0, 3], done
    for at, line in (
        (0, "repository=me/desk"),
        (1, "the hub needs a token to write"),
        (2, f"{hub} refused the token (status 401)"),
        (7, "holds model.safetensors, which R2V did not push"),
        (8, "is there already and public"),
        (10, "other/desk: is there already"),
        (13, f"me/nothing: no such repository at {hub}"),
    ):
        assert line in done[at][1] and done[at][1].count("r2v: ") == (at > 0), done[at]
    assert content(bundle) == content(tmp_path / "other" / "desk")
    assert content(report) == content(tmp_path / "results" / "report" / "page")
    names = ("run_manifest.json", "trajectories.jsonl")
    assert content(tmp_path / "other" / "chat") == {name: (run / name).read_bytes() for name in names}
    assert Hub.repositories["spaces/me/page"]["README.md"].startswith(b"---\ntitle: R2V report page\n")
    assert FILE_LIST in Hub.repositories["datasets/me/chat"] and Hub.objects, "weights went as a large file"


def test_what_was_altered_on_the_hub_is_refused_and_nothing_is_left(hub: str, tmp_path: Path) -> None:
    files = content(make_bundle(tmp_path / "desk"))
    page = json.dumps({"files": {"../../outside": "0" * 64}}).encode()
    Hub.repositories["models/me/desk"] = {**files, "policy/model.bin": b"other", ".gitattributes": b""}
    Hub.repositories["spaces/me/page"] = {FILE_LIST: page, "outside": b""}
    Hub.repositories["models/me/more"] = {**files, ".gitattributes": b"", "broken.py": b"raise SystemExit"}
    done = run_all(tmp_path, "pull me/desk", "pull spaces/me/page", "pull me/more", HF_ENDPOINT=hub)
    assert [code for code, _ in done] == [3, 3, 0], done
    assert "model.bin is damaged" in done[0][1] and "no path below the folder" in done[1][1]
    assert [path.name for path in (tmp_path / "outputs" / "bundles").iterdir()] == ["more"]
    assert content(tmp_path / "outputs" / "bundles" / "more") == files and not list((tmp_path / "results").rglob("*.*"))


@pytest.mark.whole
def test_a_hub_that_cannot_be_asked_is_one_line(tmp_path: Path) -> None:
    make_bundle(tmp_path / "desk")
    for values, line in (
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "127.0.0.1:9 did not answer as it should"),
    ):
        for code, text in run_all(tmp_path, "push desk me/desk", "pull me/desk", HF_TOKEN=TOKEN, **values):
            assert (code, line in text, text.count("r2v: ")) == (5, True, 1), text
            assert "Traceback" not in text


def test_nothing_that_does_not_hold_or_holds_a_key_is_pushed(tmp_path: Path) -> None:
    bundle, report = make_bundle(tmp_path / "desk"), make_report(tmp_path / "page")
    assert parcel_of(str(bundle)).repository("me/desk") == "me/desk"
    assert parcel_of(str(report)).repository("me/page") == "spaces/me/page"
    (bundle / "policy" / "model.bin").write_bytes(b"other")
    with pytest.raises(InputError, match=r"model\.bin is damaged"):
        parcel_of(str(bundle))
    (report / "data" / "frontier.csv").write_text("key,sk-ant-api03-" + "a1" * 30)
    with pytest.raises(InputError, match=r"frontier\.csv: holds text of the form of a key .*nothing is pushed"):
        parcel_of(str(report))
    (report / "data" / "frontier.csv").unlink()
    (report / "data" / "frontier.csv").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="no plain file"):
        parcel_of(str(report))
    with pytest.raises(InputError, match="no bundle, run or report"):
        parcel_of(str(tmp_path))
