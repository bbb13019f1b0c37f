"""Mathematical equivalence of two final answers in LaTeX, by math-verify (github.com/huggingface/Math-Verify).

    same(r"\\frac{\\sqrt3}{2}", r"\\dfrac{\\sqrt{3}}{2}")     # True

math-verify reads both with a grammar of LaTeX and compares them with sympy, which for some answers (a tower of powers)
never ends. So it runs in a child process of its own, which may use 10 seconds of processor time a question: then the
kernel ends it, whatever it is in, the answer counts as not equal, and the next question starts another one. Processor
time, not the clock: a busy machine changes no score.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import threading
from fractions import Fraction
from functools import lru_cache

from r2v.errors import EnvironmentFault

_SECONDS = 10.0
_MEMORY = 4 << 30
"""Address space of the child process, in bytes."""
_READY = "ready"
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@lru_cache(maxsize=100_000)
def same(wanted: str, got: str) -> bool:
    """True if `got` says what `wanted` does. Raises EnvironmentFault where math-verify cannot be run."""
    wanted, got = _bare(wanted), _bare(got)
    if "".join(wanted.split()) == "".join(got.split()):
        return True
    if _PLAIN_NUMBER.fullmatch(wanted) and _PLAIN_NUMBER.fullmatch(got):
        return Fraction(wanted) == Fraction(got)
    return _CHILD.same(wanted, got)


def _bare(text: str) -> str:
    return text.strip().rstrip(".,;").strip()


class EquivalenceProcess:
    """The child process, started when it is first asked and again after it was ended. Threads take turns. A comparison
    may use `seconds` of processor time."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._lock, self._seconds = threading.Lock(), seconds
        self._child: subprocess.Popen[str] | None = None
        self._owner = 0

    def same(self, wanted: str, got: str) -> bool:
        """True if the two are equal; False where the comparison used up its processor time or its memory."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(f"{wanted.encode().hex()} {got.encode().hex()}\n")
                child.stdin.flush()
            except BrokenPipeError:
                return self._ended()
            reply = child.stdout.readline().strip()
            return reply == "1" if reply else self._ended()

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None or self._owner != os.getpid():
            command = [sys.executable, "-m", "r2v.hrl.tasks.equivalence", str(self._seconds)]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._owner = os.getpid()
            assert self._child.stdout is not None
            if self._child.stdout.readline().strip() != _READY:
                self._ended()
                raise EnvironmentFault(
                    "math-verify: its process did not start (what it said stands above); is r2v installed whole? "
                    "pip install math-verify"
                )
        return self._child

    def _ended(self) -> bool:
        self.close()
        return False

    def close(self) -> None:
        """End the child process, if there is one of ours."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.kill()
            child.communicate()


_CHILD = EquivalenceProcess()
atexit.register(_CHILD.close)


def _serve(seconds: float) -> None:
    """Answer questions from the standard input, a line each, until it is closed."""
    import logging
    import resource
    import signal

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # it warns of each expression that it cannot read
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    print(_READY, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF, which nobody handles here, ends the process
        wanted, got = (
            parse(f"\\boxed{{{bytes.fromhex(part).decode()}}}", forms, parsing_timeout=None) for part in line.split(" ")
        )
        equal = verify(wanted, got, timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(equal), flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
