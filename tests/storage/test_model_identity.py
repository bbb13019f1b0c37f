"""A base model is identified by the files that are read of it, and a login node never reads its weights."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from r2v.errors import InputError, UsageError
from r2v.storage.model_identity import (
    BASE_RECORD,
    NOT_HASHED,
    NotHashed,
    base_sha256,
    hub_commit,
    model_folder,
    pinned_commit,
    record_base,
    require_base,
)

WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = {"weight_map": {"a": WEIGHTS[0], "b": WEIGHTS[1]}}
READ = {
    **dict.fromkeys(WEIGHTS, "0123456789"),
    "model.safetensors.index.json": json.dumps(INDEX),
    "config.json": '{"rope_theta": 10000}',
    "generation_config.json": '{"eos_token_id": 2}',
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "special_tokens_map.json": "{}",
    "added_tokens.json": "{}",
    "vocab.json": "{}",
    "merges.txt": "a b",
    "sentencepiece.model": "s",
    "chat_template.jinja": "{{ x }}",
    "additional_chat_templates/tool_use.jinja": "{{ y }}",
}
"""Every kind of file that loading a model reads."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for name, text in READ.items():
        (folder / name).write_text(text)
    for path in folder.rglob("*"):
        os.utime(path, ns=(1, 1))
    return folder


def hashed(folder: Path) -> str:
    return base_sha256(str(folder), hash_weights=True)


def remembered(folder: Path) -> str:
    """Return the cached hash; a file that has just been written is not cached, so wait."""
    while True:
        made = hashed(folder)
        with suppress(NotHashed):
            assert base_sha256(str(folder)) == made
            return made


@pytest.mark.parametrize("name", READ)
def test_each_file_that_is_read_counts(base: Path, name: str) -> None:
    before = hashed(base)
    text = READ[name]
    (base / name).write_text(text.replace(text[-1], "!") if name in WEIGHTS else text + " ")  # weights of equal size
    assert hashed(base) != before
    (base / name).write_text(text)
    assert hashed(base) == before


def test_what_is_not_read_does_not_count(base: Path) -> None:
    before = hashed(base)
    (base / "README.md").write_text("a card")
    (base / "pytorch_model.bin").write_text("weights in another form, which are not loaded")
    assert hashed(base) == before


def test_a_login_node_takes_hashes_from_the_cache_and_makes_none(base: Path) -> None:
    with pytest.raises(NotHashed, match=f"{NOT_HASHED}: .*{WEIGHTS[0]}"):
        base_sha256(str(base))
    made = remembered(base)
    assert base_sha256(str(base)) == made
    path, times = base / WEIGHTS[1], (base / WEIGHTS[1]).stat()
    path.write_text("9876543210")  # of the same size, and with its former times
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(NotHashed, match=WEIGHTS[1]):
        base_sha256(str(base))


def test_sixteen_gigabytes_are_not_read_on_a_login_node(base: Path) -> None:
    os.truncate(base / WEIGHTS[0], 16 << 30)

    def characters_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = characters_read()
    with pytest.raises(NotHashed):
        base_sha256(str(base))
    assert characters_read() - before < 1 << 20


def test_a_model_that_is_not_here_is_not_hashed_yet() -> None:
    with pytest.raises(NotHashed, match=r"policy\.model_name=org/absent is not on this machine"):
        base_sha256("org/absent")
    with pytest.raises(InputError, match=r"policy\.model_name=\./absent: no such directory"):
        base_sha256("./absent", hash_weights=True)
    with pytest.raises(
        InputError, match=r"policy\.model_name: cannot load org/absent .*name a directory or a hub model"
    ):
        base_sha256("org/absent", hash_weights=True)


def test_blobs_of_the_hubs_cache_are_known_by_their_names(tmp_path: Path, base: Path) -> None:
    repository = tmp_path / "hub" / "models--org--small"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot / "additional_chat_templates", repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for name, text in READ.items():
        if name in WEIGHTS:
            blob = repository / "blobs" / hashlib.sha256(text.encode()).hexdigest()
            blob.write_text("not read")
            (snapshot / name).symlink_to(blob)
        else:
            (snapshot / name).write_text(text)
    assert hub_commit("org/small") == pinned_commit("org/small") == hub_commit("org/small", COMMIT) == COMMIT
    assert model_folder("org/small") == snapshot
    assert base_sha256("org/small") == base_sha256("org/small", COMMIT) == hashed(base)
    assert hub_commit("org/small", "v2") is None
    with pytest.raises(NotHashed):
        base_sha256("org/small", "v2")
    (snapshot / WEIGHTS[0]).unlink()  # an interrupted download
    with pytest.raises(NotHashed):
        base_sha256("org/small")
    with pytest.raises(UsageError, match=r"policy\.revision=v2: .* is a folder"):
        model_folder(str(base), "v2")


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub that a download needs."""

    def do_HEAD(self) -> None:
        self._send(b"")

    def do_GET(self) -> None:
        name = self.path.rpartition(f"/{COMMIT}/")[2]
        files = [{"type": "file", "path": name, "oid": "0", "size": len(text)} for name, text in READ.items()]
        if "/tree/" in self.path:
            self._send(json.dumps([*files, {"type": "file", "path": "README.md", "oid": "0", "size": 1}]).encode())
        elif self.path.startswith("/api/"):
            self._send(json.dumps({"id": "org/small", "sha": COMMIT}).encode())
        else:
            self._send(READ[name].encode())

    def _send(self, body: bytes) -> None:
        name = self.path.rpartition(f"/{COMMIT}/")[2]
        content = READ.get(name, "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body or content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_hub_model_is_pinned_without_a_download_and_fetched_by_who_may_hash(hub: str, base: Path) -> None:
    asked = (
        "from r2v.storage.model_identity import *\n"
        "print(pinned_commit('org/small'), hub_commit('org/small'))\n"
        f"print(base_sha256('org/small', '{COMMIT}', hash_weights=True))\n"
        "print(*sorted(path.name for path in model_folder('org/small', '" + COMMIT + "').iterdir()))\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    commits, sha256, names = done.stdout.splitlines()
    assert commits == f"{COMMIT} None" and sha256 == hashed(base)
    assert set(names.split()) == {name.partition("/")[0] for name in READ}, "no README, no second form of the weights"


def test_adapters_stand_for_their_base_too(tmp_path: Path, base: Path) -> None:
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    (adapters / "adapter_model.safetensors").write_text("a")
    before = hashed(adapters)
    (base / "config.json").write_text("{}")
    assert hashed(adapters) != before
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(adapters)}))
    with pytest.raises(InputError, match="its adapters are their own base"):
        hashed(adapters)


def test_adapters_are_refused_on_another_base_and_warned_of_once_without_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        require_base(tmp_path, "models/base", "1" * 64)
    assert caplog.text.count(f"missing={BASE_RECORD}") == 1
    record_base(tmp_path, "models/base", "1" * 64)
    require_base(tmp_path, "elsewhere/base", "1" * 64)
    with pytest.raises(InputError, match=r"adapters of another base: trained on 111.*, policy\.model_name=b is 222"):
        require_base(tmp_path, "b", "2" * 64)
    (tmp_path / BASE_RECORD).write_text("[")
    with pytest.raises(InputError, match=r"base\.json: names no base .*; train the adapters again"):
        require_base(tmp_path, "b", "1" * 64)
