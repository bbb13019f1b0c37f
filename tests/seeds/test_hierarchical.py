"""Seed 000's own lines: its one command, and the names it gives away."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from r2v.hrl import ArcherAgent, DoubleCritic, optimize_batch_processing
from tests.seeds.workspace import checkout, typed


def test_the_command_needs_no_argument(tmp_path: Path) -> None:
    """Placed, begun, and stopped when it has a checkpoint; a whole run takes minutes."""
    root = checkout(tmp_path)
    process = subprocess.Popen(
        **typed(root, "exec python scripts/run_memory_optimized.py"), stderr=subprocess.PIPE, text=True
    )
    latest, deadline = root / "outputs/hierarchical/desk_noisy/checkpoint-latest", time.monotonic() + 240
    while not latest.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 75 and "placement shared" in said and "rows at a time" in said, said
    assert latest.exists() and (latest.parent / "metrics.jsonl").read_text().count("\n") >= 1


def test_the_batch_table() -> None:
    assert [optimize_batch_processing(size) for size in (44.53, 40, 20)] == [
        {"base_batch": 16, "critic_batch": 32, "micro_batch": 8},
        {"base_batch": 8, "critic_batch": 16, "micro_batch": 4},
        {"base_batch": 4, "critic_batch": 8, "micro_batch": 2},
    ]


def test_the_names() -> None:
    assert ArcherAgent.__module__.startswith("r2v.hrl") and DoubleCritic.__module__ == "r2v.hrl.algorithm.critic"
