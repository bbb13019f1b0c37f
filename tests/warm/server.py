"""Server that imports once and forks for each client (see `__init__.py`): python -P server.py FOLDER CHECKOUT"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch",
    "torch.distributed",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.trainer",
    "peft",
    "trl",
    "trl.trainer.dpo_trainer",
    "trl.trainer.sft_trainer",
    "accelerate",
    "datasets",
    "deepspeed",
    "openai",
    "anthropic",
    "sklearn.linear_model",
    "scipy.stats",
)


def main(folder: Path, root: Path) -> None:
    """Import the libraries and serve; a fork imports R2V too, and serves."""
    names = ["libraries", "r2v"]
    listeners = {name: socket.socket(socket.AF_UNIX) for name in names}
    for name in names:
        listeners[name].bind(f"{folder}/{name}.early")
    for library in LIBRARIES:
        import_module(library)
    name = "libraries"
    if not os.fork():
        name = "r2v"
        import_r2v(root)
    gc.collect()
    gc.freeze()  # a fork's collections skip everything imported here
    listeners.pop(next(other for other in names if other != name)).close()
    listeners[name].listen(64)
    Path(f"{folder}/{name}.early").rename(folder / name)  # clients wait for this name
    serve(listeners[name])


def import_r2v(root: Path) -> None:
    """Import every module of the checkout, except programs and modules whose requirements are not installed."""
    sys.path.insert(0, str(root))
    for path in sorted((root / "r2v").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if not module.endswith("__main__"):
            with contextlib.suppress(ImportError):
                import_module(module)
    sys.path.remove(str(root))


def serve(listener: socket.socket) -> None:
    """Fork for each connection, send its client the exit code of the process, kill processes without a client."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    clients: dict[int, socket.socket] = {}
    costs: dict[int, str] = {}
    while True:
        ready, _, _ = select.select([0, listener, woken, *clients.values()], [], [])
        if 0 in ready:
            for pid in clients:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            reap(clients, costs)
        for pid in [pid for pid, client in clients.items() if client in ready]:
            os.kill(pid, signal.SIGKILL)  # its client is gone
            clients.pop(pid).close()
        if listener in ready:
            connection, _ = listener.accept()
            header, files, _, _ = socket.recv_fds(connection, 8, 3)
            request = json.loads(received(connection, int.from_bytes(header, "big")))
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (listener, connection, *clients.values()):
                    other.close()
                os.close(woken)
                os.close(wake)
                become(request, files)
            for file in files:
                os.close(file)
            clients[pid], costs[pid] = connection, request["costs"]
            connection.sendall(pid.to_bytes(8, "big"))


def received(connection: socket.socket, length: int) -> bytes:
    """Return exactly so many bytes."""
    data = b""
    while len(data) < length:
        data += connection.recv(length - len(data))
    return data


def reap(clients: dict[int, socket.socket], costs: dict[int, str]) -> None:
    """Record the CPU cost of ended processes, and send their clients the exit code, or minus the signal."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, usage = ended
            with contextlib.suppress(FileNotFoundError), Path(costs.pop(pid, "")).open("a") as file:
                file.write(f"{usage.ru_utime + usage.ru_stime}\n")
            if (client := clients.pop(pid, None)) is not None:
                with contextlib.suppress(BrokenPipeError):
                    client.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
                client.close()


def become(request: dict[str, Any], files: list[int]) -> None:
    """In the forked process: take over the client's files, environment and folder, run, and end."""
    for target, file in enumerate(files):
        os.dup2(file, target)
    for file in set(files) - {0, 1, 2}:
        os.close(file)
    environment = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    os.umask(request["mask"])
    for limit, values in request["limits"]:
        resource.setrlimit(limit, tuple(values))
    sys.executable = request["executable"]
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    random.seed()
    words = request["words"]
    if words[0] == "-u":
        words, environment = words[1:], {**environment, "PYTHONUNBUFFERED": "1"}
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    script = words[0] not in ("-m", "-c")
    first = str(Path(words[0]).resolve().parent) if script else "" if words[0] == "-c" else request["folder"]
    own_path = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = [first, *own_path]
    sys.orig_argv[:] = [sys.executable, *words]
    code = 0
    try:
        if any(Path(folder, "sitecustomize.py").exists() for folder in own_path):
            sys.modules.pop("sitecustomize", None)
            import_module("sitecustomize")
        if script:
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
        elif words[0] == "-m":
            sys.argv[:] = words[1:]
            sys.modules.pop(words[1], None)  # it is run, whether or not R2V's modules imported it
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
