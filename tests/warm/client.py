"""The process that stands in for Python (see `__init__.py`, which fills in the constants in brackets)."""

import json
import os
import resource
import signal
import socket
import sys
import time

SERVER, REAL, ROOT, COSTS, FORKS, EXECUTABLE = "<SERVER>", "<REAL>", "<ROOT>", "<COSTS>", "<FORKS>", "<EXECUTABLE>"
LIMITS = (resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
COLD = {"PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONWARNINGS"}
"""Variables that an interpreter reads when it starts."""
PATIENCE = 300.0
"""Seconds that a busy machine may take for the imports."""
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


def main() -> None:
    """Have the server fork, and become a client of the fork."""
    plain = len(sys.argv) > 1 and (sys.argv[1] in ("-m", "-c", "-u") or not sys.argv[1].startswith("-"))
    if not plain or COLD & set(os.environ):
        os.execv(REAL, [REAL, *sys.argv[1:]])
    address = f"{SERVER}/{'r2v' if imports_r2v() else 'libraries'}"
    connection = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + PATIENCE
    while connection.connect_ex(address):  # the server is still importing
        if time.monotonic() > deadline:
            sys.exit("the server of tests/warm does not answer")
        time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    request = {
        "words": sys.argv[1:],
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
        "limits": [(limit, resource.getrlimit(limit)) for limit in LIMITS],
        "mask": os.umask(0),
        "executable": EXECUTABLE,
        "costs": COSTS,
    }
    data = json.dumps(request).encode()
    socket.send_fds(connection, [len(data).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(data)
    process = answer(connection)
    with open(f"{FORKS}/{os.getpid()}", "w") as file:  # noqa: PTH123
        file.write(str(process))
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: os.kill(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = answer(connection)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def imports_r2v() -> bool:
    """True if the r2v that the process would import is this checkout's."""
    words = sys.argv[2:] if sys.argv[1] == "-u" else sys.argv[1:]
    first = os.getcwd() if words[0].startswith("-") else os.path.dirname(words[0])  # noqa: PTH109, PTH120
    folders = [first or ".", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    having = [folder for folder in folders if folder and os.path.exists(f"{folder}/r2v")]  # noqa: PTH110
    return bool(having) and os.path.realpath(having[0]) == ROOT


def answer(connection: socket.socket) -> int:
    """Return a number from the server; exit if it is gone."""
    data = connection.recv(8)
    if not data:
        sys.exit("the server of tests/warm is gone")
    return int.from_bytes(data, "big", signed=True)


main()
