"""Mathematical equivalence of two final answers in LaTeX, by math-verify (github.com/huggingface/Math-Verify).

    same(r"\\frac{\\sqrt3}{2}", r"\\dfrac{\\sqrt{3}}{2}")     # True

math-verify parses both with a grammar of LaTeX and compares them with sympy, which never ends for some answers (a tower
of powers). It therefore runs in a child process with 10 seconds of processor time per comparison. After that the kernel
ends it, the answer counts as not equal, and the next comparison starts a new child. Processor time instead of the
clock, because a busy machine must not change scores.
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
def same(expected: str, got: str) -> bool:
    """True if `got` is equivalent to `expected`. Raises EnvironmentFault if math-verify cannot be run."""
    expected, got = _bare(expected), _bare(got)
    if "".join(expected.split()) == "".join(got.split()):
        return True
    if _PLAIN_NUMBER.fullmatch(expected) and _PLAIN_NUMBER.fullmatch(got):
        return Fraction(expected) == Fraction(got)
    return _CHILD.same(expected, got)


def _bare(text: str) -> str:
    return text.strip().rstrip(".,;").strip()


class EquivalenceProcess:
    """Child process for comparisons, started on first use and again after its end. Threads take turns. `seconds`: limit
    on the processor time of a comparison."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._lock, self._seconds = threading.Lock(), seconds
        self._child: subprocess.Popen[str] | None = None
        self._owner = 0

    def same(self, expected: str, got: str) -> bool:
        """True if both are equivalent; False if not, or if the comparison exceeded its processor time or memory."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            try:
                child.stdin.write(f"{expected.encode().hex()} {got.encode().hex()}\n")
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
        """End the child process, unless a parent process started it."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.kill()
            child.communicate()


_CHILD = EquivalenceProcess()
atexit.register(_CHILD.close)


def _serve(seconds: float) -> None:
    """Answer comparisons from the standard input, one per line, until it is closed."""
    import logging
    import resource
    import signal

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)  # math-verify warns of each expression that it cannot parse
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    forms = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    print(_READY, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF, without a handler, ends the process
        expected, got = (
            parse(f"\\boxed{{{bytes.fromhex(part).decode()}}}", forms, parsing_timeout=None) for part in line.split(" ")
        )
        equal = verify(expected, got, timeout_seconds=None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(int(equal), flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
