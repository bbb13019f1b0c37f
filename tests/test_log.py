"""Figures reach wandb, offline, where the seed looks for them; nowhere when it is disabled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_disabled_imports_and_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from r2v.log import to_wandb; "
        "to_wandb('disabled', 'r2v-agent', 'bc', {'loss': 1.0}, Path('logs')); assert 'wandb' not in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={**environment, "PYTHONPATH": str(ROOT)})
    assert not (tmp_path / "logs").exists()


def test_offline_figures_land_under_logs_wandb(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from r2v.log import to_wandb; "
        "to_wandb('disabled', 'r2v-agent', 'bc', {'loss': 1.0, 'report': {'auroc': 0.9}}, Path('logs'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)
    assert [path.suffix for path in (tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb")] == [".wandb"]


def test_a_series_goes_before_the_figures_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 0, "acc/turn2": 0.25}\n{"iteration": 1, "acc/turn2": 0.5}\n')
    code = (
        "from pathlib import Path; from r2v.log import to_wandb; "
        "to_wandb('offline', 'r2v-agent', 'hierarchical', {'trained': 1}, Path('logs'), Path('metrics.jsonl'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={**environment, "PYTHONPATH": str(ROOT)})
    (written,) = (tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb")
    assert written.read_bytes().count(b"acc/turn2") >= 2 and b"trained" in written.read_bytes()
