"""Sandbox for code written by models, and test verdicts that the code cannot forge.

    run(["sh", "fix"], files={"fix": b"..."}, wanted=["patch"])       # a command's output and files
    passes("def f(x): return x * x", "assert f(2) == 4")              # True

    limits          resource limits
    bubblewrap      isolation: new namespaces, a read-only system, no network, none of the user's files
    seccomp         filter of system calls
    process         a process in isolation, or with `unsafe` without it
    command         a command run to its end or its limit
    working_folder  folders packed into bytes, which outlive their sandbox
    verdict         an answer and its tests in two processes that exchange data only

`boot`, `plain_values`, `wire`, `answering`, `judging`, `supervising` and `working_folder` run inside: their compiled
code is passed to the process, and they import only the standard library and each other.
"""

from r2v.sandbox.command import CommandResult, run
from r2v.sandbox.limits import Limits
from r2v.sandbox.verdict import passes

__all__ = ["CommandResult", "Limits", "passes", "run"]
