"""CPU, added latency and memory of the server, beside LiteLLM's proxy and Switchyard's server in one run.

    python -m benchmarks.serve --install           # the peers, newest releases, into outputs/peers
    python -m benchmarks.serve                     # 1 to 64 streams at once, then 100,000 requests for memory
    python -m benchmarks.serve --requests 2000 --memory 0 --only r2v

The upstream and the load generator share one CPU, the server has another. Requests are 20 kB, replies are streams of
200 events that the upstream writes as fast as they are read. CPU is user and system time of the server's process and
its children per request, while each stream sends its next request when the last is answered. Latency is added latency,
through the server less direct, at a rate that saturates no server. Every peer runs at the fastest setting of its
documentation, with its own spend log on if it has one without a database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

HOME = Path("outputs/peers")
PATH = "/v1/chat/completions"
EVENTS, STREAMS = 200, (1, 4, 16, 64)
RATE = 20.0
"""Requests a second while latency is measured: a rate at which no server is saturated."""
KEY = "sk-benchmark-0123456789abcdef"
EVENT = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "gpt-6-luna"}
_SERVER_CPU, _LOAD_CPU = 0, 1


def reply() -> bytes:
    """Return the upstream's stream as chunks of HTTP."""
    chunks = [
        {**EVENT, "choices": [{"index": 0, "delta": {"content": f"word {n} "}, "finish_reason": None}]}
        for n in range(EVENTS)
    ]
    chunks.append({**EVENT, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 5000, "completion_tokens": EVENTS, "total_tokens": 5000 + EVENTS}
    chunks.append({**EVENT, "choices": [], "usage": usage})
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def request(host: str, model: str) -> bytes:
    """Return a request of 20 kB."""
    text = "The quick brown fox jumps over the lazy dog. " * 430
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 500}
    content = json.dumps(
        body | {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}]}
    ).encode()
    lines = [f"POST {PATH} HTTP/1.1", f"host: {host}", f"authorization: Bearer {KEY}", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(content)}", "", ""]).encode() + content


async def upstream(port: int) -> None:
    """Serve the reply until the process ends."""
    answer = reply()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(length)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, StopIteration):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 22)
    await server.serve_forever()


async def load(port: int, model: str, streams: int, requests: int, rate: float) -> list[float]:
    """Send requests over `streams` connections; return the seconds of each. rate: requests per second of all
    connections together, at drawn times; 0: each connection sends the next when the last is answered."""
    draw = random.Random(7)
    content, durations, left = request(f"127.0.0.1:{port}", model), list[float](), iter(range(requests))

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        for _ in left:
            if rate:
                await asyncio.sleep(draw.expovariate(rate / streams))
            began = time.perf_counter()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head[:300]
            if b"chunked" in head.lower():
                tail = b""
                while not tail.endswith(b"0\r\n\r\n"):
                    piece = await reader.read(1 << 18)
                    assert piece, "the reply was cut"
                    tail = (tail + piece)[-16:]
            else:
                length = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
                )
                await reader.readexactly(length)
            durations.append(time.perf_counter() - began)
            if b"connection: close" in head.lower():
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.close()

    await asyncio.gather(*(one() for _ in range(streams)))
    return durations


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A server under test. `start` writes its configuration below a folder and returns its command."""

    package: str
    model: str
    start: Callable[[Path, int, int], Sequence[str]]
    env: Mapping[str, str]


def _r2v(folder: Path, port: int, behind: int, *more: str) -> Sequence[str]:
    words = [sys.executable, "-m", "r2v", "serve", "--record", "--llm", "openai:gpt-6-luna", *more]
    return [
        *words,
        "--overrides",
        f"serve.port={port}",
        f"teacher.base_url=http://127.0.0.1:{behind}/v1",
        "teacher.usd_in=1",
        "teacher.usd_out=4",
    ]


def _litellm(folder: Path, port: int, behind: int) -> Sequence[str]:
    settings = {
        "model_list": [
            {
                "model_name": "gpt-6-luna",
                "litellm_params": {
                    "model": "openai/gpt-6-luna",
                    "api_base": f"http://127.0.0.1:{behind}/v1",
                    "api_key": "x",
                },
            }
        ],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "num_retries": 0},
    }
    (folder / "litellm.json").write_text(json.dumps(settings))
    program = (HOME / "litellm" / "bin" / "litellm").absolute()
    return [
        str(program),
        "--config",
        str(folder / "litellm.json"),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        "--num_workers",
        "1",
    ]


_ROUTES = """schema_version = 1
[llm_clients.upstream]
format = "openai_chat"
base_url = "http://127.0.0.1:{behind}/v1"
api_key_env = "OPENAI_API_KEY"
[targets.capable]
id = "gpt-6-luna"
llm_client = "upstream"
[targets.efficient]
id = "gpt-6-luna"
llm_client = "upstream"
[routes.switchyard]
id = "switchyard"
type = "stage_router"
capable_target = "capable"
efficient_target = "efficient"
picker = "efficient_first"
confidence_threshold = 0.5
"""
"""The configuration of Switchyard's README, both models at the upstream."""


def _switchyard(folder: Path, port: int, behind: int) -> Sequence[str]:
    (folder / "routes.toml").write_text(_ROUTES.format(behind=behind))
    serve = (
        f"from switchyard_rust.server import Server; import time; s = Server('routes.toml', {port}); time.sleep(1e6)"
    )
    return [str((HOME / "switchyard" / "bin" / "python").absolute()), "-c", serve]


PEERS = {
    "r2v": Peer(
        package="", model="gpt-6-luna", start=_r2v, env={"R2V_SERVE_KEY": KEY, "OPENAI_API_KEY": "sk-upstream"}
    ),
    "Switchyard": Peer(
        package="nemo-switchyard", model="switchyard", start=_switchyard, env={"OPENAI_API_KEY": "sk-upstream"}
    ),
    "LiteLLM": Peer(
        package="litellm[proxy]",
        model="gpt-6-luna",
        start=_litellm,
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"},
    ),
}


def install() -> None:
    """Install the peers."""
    for name, peer in PEERS.items():
        if peer.package:
            home = HOME / name.lower()
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([str(home / "bin/pip"), "install", "-q", peer.package], check=True)


@contextmanager
def running(words: Sequence[str], env: Mapping[str, str], cwd: Path, cpu: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process on one CPU."""
    command = ["taskset", "-c", str(cpu), *words]
    with (
        (cwd / "log").open("wb") as log,
        subprocess.Popen(command, env=env, cwd=cwd, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"the server ended: {log.read_text()[-2000:]}")
        try:
            httpx2.get(f"http://127.0.0.1:{port}/", timeout=2)
            return
        except httpx2.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"the server does not answer: {log.read_text()[-2000:]}")


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = children.read_text().split() if children.exists() else []
    return [pid, *(inner for child in below for inner in tree(int(child)))]


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and its children."""
    ticks = 0
    for process in tree(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    pages = sum(int(Path(f"/proc/{process}/statm").read_text().split()[1]) for process in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run_load(port: int, model: str, streams: int, requests: int, rate: float = 0.0) -> list[float]:
    """Run the load on its CPU, in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.serve",
        "--load",
        str(port),
        model,
        str(streams),
        str(requests),
        str(rate),
    ]
    done = subprocess.run(["taskset", "-c", str(_LOAD_CPU), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    times: list[float] = json.loads(done.stdout)
    return times


def measure(
    name: str, peer: Peer, behind: int, port: int, requests: int, memory: int, direct: Mapping[int, list[float]]
) -> None:
    """Print a server's rows."""
    folder = Path(tempfile.mkdtemp(prefix="r2v-serve-"))
    words = peer.start(folder, port, behind)
    env = {**os.environ, **peer.env, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    with running(words, env, folder, _SERVER_CPU) as process:
        wait_for(port, process, folder / "log")
        run_load(port, peer.model, 4, 50)  # imports and caches
        for streams in STREAMS:
            before = cpu_seconds(process.pid)
            run_load(port, peer.model, streams, requests)
            cpu = (cpu_seconds(process.pid) - before) / requests
            times = run_load(port, peer.model, streams, min(requests, 500), RATE)
            p50, p99 = (added(times, direct[streams], share) for share in (0.5, 0.99))
            print(
                f"{name:12} {streams:3} streams  {1000 * cpu:7.2f} CPU-ms per request  {1 / cpu:7.0f} requests/CPU-s"
                f"  added p50 {1000 * p50:7.2f} ms  p99 {1000 * p99:7.2f} ms",
                flush=True,
            )
        if memory:
            first = memory_mb(process.pid)
            run_load(port, peer.model, 16, memory)
            print(
                f"{name:12} memory {first:.0f} MB, after {memory} more requests {memory_mb(process.pid):.0f} MB",
                flush=True,
            )
    shutil.rmtree(folder, ignore_errors=True)


def added(times: Sequence[float], direct: Sequence[float], share: float) -> float:
    """Return a quantile less that of the direct requests."""
    return _quantile(times, share) - _quantile(direct, share)


def _quantile(times: Sequence[float], share: float) -> float:
    return statistics.quantiles(times, n=1000, method="inclusive")[round(share * 1000) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the peers (default: measure)")
    parser.add_argument("--requests", type=int, default=2000, help="for each number of streams (default: 2000)")
    parser.add_argument(
        "--memory", type=int, default=100_000, help="requests while memory is watched (default: 100000)"
    )
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS), help="servers (default: all)")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=5, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.install:
        install()
    elif values.upstream:
        asyncio.run(upstream(values.upstream))
    elif values.load:
        port, model, streams, requests, rate = values.load
        print(json.dumps(asyncio.run(load(int(port), model, int(streams), int(requests), float(rate)))))
    else:
        behind, port = 18_480, 18_481
        folder = Path(tempfile.mkdtemp(prefix="r2v-serve-"))
        env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
        words = [sys.executable, "-m", "benchmarks.serve", "--upstream", str(behind)]
        with running(words, env, folder, _LOAD_CPU) as process:
            time.sleep(1.5)
            assert process.poll() is None, (folder / "log").read_text()
            direct = {streams: run_load(behind, "x", streams, min(values.requests, 500), RATE) for streams in STREAMS}
            for streams, times in direct.items():
                p50, p99 = (1000 * _quantile(times, share) for share in (0.5, 0.99))
                print(f"direct       {streams:3} streams  p50 {p50:.2f} ms  p99 {p99:.2f} ms")
            for number, name in enumerate(values.only):
                if PEERS[name].package and not (HOME / name.lower()).exists():
                    print(f"{name:12} is not installed: python -m benchmarks.serve --install")
                    continue
                measure(name, PEERS[name], behind, port + number, values.requests, values.memory, direct)


if __name__ == "__main__":
    main()
