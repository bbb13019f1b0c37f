"""Sandbox: where code that a model wrote is run, and a verdict on it that the code cannot forge.

    run(["sh", "fix"], files={"fix": b"..."}, wanted=["patch"])       # a command: its output and its files
    passes("def f(x): return x * x", "assert f(2) == 4")              # True

    limits          what the code may use
    bubblewrap      the walls: namespaces of its own, a read-only system, no network, nothing of the user's files
    seccomp         the system calls that it may not make
    process         a process behind the walls, or with `unsafe` before them
    command         a command run to its end or its limit
    working_folder  a folder packed into bytes, which outlives its sandbox
    verdict         an answer and its tests, in two processes that exchange data alone

`boot`, `plain_values`, `wire`, `answering`, `judging`, `supervising` and `working_folder` run inside: their code is
handed over, and they import nothing but the standard library and each other.
"""

from r2v.sandbox.command import CommandResult, run
from r2v.sandbox.limits import Limits
from r2v.sandbox.verdict import passes

__all__ = ["CommandResult", "Limits", "passes", "run"]
