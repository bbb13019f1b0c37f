"""Check training, decoding and the memory planner on this GPU: `make gpu-check`, ten minutes.

    python benchmarks/gpu_check.py --out gpu-check           # the parts of ten minutes, each with its limit in seconds
    python benchmarks/gpu_check.py --part numbers --device cpu
    python benchmarks/gpu_check.py --part adapters           # a part that is run only by name

It runs from a source tree with the installed torch, and names each part that it skips for want of a package. A part
runs in a process of its own, writes its output to OUT/<part>.txt and a line to the table of OUT/summary.txt; a part
that fails stops no other. Speeds beside vLLM and TRL come first. Nothing is downloaded: models are random weights of a
published shape. Exit code 0: every part that ran succeeded.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.gpu_parts import BY_NAME, MODEL, NEEDS, PARTS  # noqa: E402  (found by the line above)

TOTAL_SECONDS = 600
PROGRAMS = {
    "speed-beside-vllm": (280, ["benchmarks/engine_speed.py", "--cuda"]),
    "speed-beside-trl": (
        90,
        [
            "benchmarks/hrl_speed.py",
            "--cuda",
            "--model",
            MODEL,
            "--prompts",
            "16",
            "--samples",
            "4",
            "--completion",
            "128",
            "--rounds",
            "2",
        ],
    ),
}
"""Other benchmarks that are part of the check, with their limits in seconds."""


def limits() -> dict[str, tuple[int, list[str] | None]]:
    """Return the limit in seconds of each part that runs by default, and its program; None for one of `PARTS`."""
    own = {name: (limit, None) for name, (limit, _) in PARTS.items() if name not in BY_NAME}
    return {**PROGRAMS, **own}


def run_all(out: Path, device: str) -> int:
    """Run every part of the ten minutes, each in a process of its own, and print the table; return 1 if one failed."""
    out.mkdir(parents=True, exist_ok=True)
    begun, failed = time.monotonic(), False
    table = ["| part | result | seconds | last line |", "|---|---|---|---|"]
    for name, (limit, program) in limits().items():
        left = TOTAL_SECONDS - (time.monotonic() - begun)
        absent = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
        if absent or left < 8:
            table.append(f"| {name} | skipped: {'no ' + ', '.join(absent) if absent else 'no time left'} | | |")
            print(table[-1], flush=True)
            continue
        started, log = time.monotonic(), out / f"{name}.txt"
        result = _run_part(program or [__file__, "--part", name, "--device", device], log, min(limit, left))
        failed = failed or result != "ok"
        last_line = (log.read_text(errors="replace").strip().splitlines() or [""])[-1].replace("|", "/")
        table.append(f"| {name} | {result} | {time.monotonic() - started:.0f} of {limit} | {last_line[:160]} |")
        print(table[-1], flush=True)
    (out / "summary.txt").write_text("\n".join(table) + "\n")
    print("\n".join(["", *table]))
    return int(failed)


def _run_part(words: list[str], log: Path, limit: float) -> str:
    """Run one part; return "ok" or its failure in words."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    with log.open("w") as file:
        try:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=REPOSITORY,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return "over its limit"
    return "ok" if done.returncode == 0 else f"**exit {done.returncode}**"


def main() -> int:
    """Run one part in this process, or all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), metavar="DIR", help="default: gpu-check")
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="cuda, or cpu for the parts that can")
    parser.add_argument("--part", choices=PARTS, help="run this part alone, in this process")
    arguments = parser.parse_args()
    if arguments.part:
        PARTS[arguments.part][1](arguments.device)
        return 0
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device here; run it on a machine with a GPU", file=sys.stderr)
        return 5
    return run_all(arguments.out, arguments.device)


if __name__ == "__main__":
    sys.exit(main())
