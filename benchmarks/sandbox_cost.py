"""Wall time of a program's check in the sandbox, against the same check without walls, in turns.

python benchmarks/sandbox_cost.py
"""

from __future__ import annotations

import statistics
import time

from r2v.sandbox import passes
from r2v.sandbox.process import require

CHECKS = 40


def milliseconds(unsafe: bool) -> float:
    """Return the wall milliseconds of one check."""
    began = time.perf_counter()
    assert passes("def f(x): return x * x", "assert f(2) == 4\nassert f(3) == 9", unsafe=unsafe)
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Print the least and the median time of both, and their ratios."""
    require(unsafe=False)
    times = [(milliseconds(False), milliseconds(True)) for _ in range(CHECKS + 1)][1:]
    behind, before = ([pair[index] for pair in times] for index in (0, 1))
    for name, measure in (("least", min), ("median", statistics.median)):
        print(
            f"{name} of {CHECKS}: sandboxed {measure(behind):.0f} ms, without walls {measure(before):.0f} ms, "
            f"ratio {measure(behind) / measure(before):.2f}"
        )


if __name__ == "__main__":
    main()
