"""Figures reach wandb, offline, where the seed looks for them; nowhere when it is disabled; and wandb hurts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.log import wandb_mode

ROOT = Path(__file__).parents[1]
STAGE = """
import sys
from pathlib import Path
from r2v import log
from r2v.progress import Progress
log.setup()
log.WANDB_PATIENCE = 20.0 if len(sys.argv) < 3 else float(sys.argv[2])
run = log.WandbRun(
    mode=sys.argv[1], project="r2v-agent", id="desk_noisy-bc-0a", job="bc", group="desk_noisy",
    config={"training": {"lr": 0.25}}, folder=Path("logs"),
)
with log.in_wandb(run) as at_end:
    with Progress("cloning", 2) as bar:
        bar.advance(loss=1.0)
        bar.advance(loss=0.5)
    for iteration in range(2):
        log.curve({"iteration": iteration, "acc/turn2": 0.25 + iteration / 4, "said": "no number"})
    at_end({"trained": 1, "report": {"auroc": 0.9}, "bad": float("nan")})
print("the work is done", "wandb" in sys.modules)
"""


def stage(folder: Path, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "NETRC": str(folder / "no-netrc"), **values}
    return subprocess.run(
        [sys.executable, "-c", STAGE, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_disabled_imports_and_writes_nothing(tmp_path: Path) -> None:
    assert stage(tmp_path, "disabled").stdout == "the work is done False\n"
    assert stage(tmp_path, "auto").stdout == "the work is done False\n"
    assert not (tmp_path / "logs").exists()


def test_offline_figures_and_configuration_land_under_logs_wandb_as_they_come(tmp_path: Path) -> None:
    done = stage(tmp_path, "disabled", WANDB_MODE="offline")
    assert done.stdout == "the work is done False\n", done.stderr
    (written,) = (tmp_path / "logs" / "wandb").glob("offline-run-*-desk_noisy-bc-0a/*.wandb")
    content = written.read_bytes()
    assert content.count(b"cloning/loss") >= 2 and content.count(b"acc/turn2") >= 2
    assert b"report/auroc" in content and b"desk_noisy" in content and b"training" in content
    assert not list((tmp_path / "logs/wandb").glob("curves-*")), "all of it was taken"


@pytest.mark.parametrize(
    "broken", ["raise OSError('no disk')", "import time; time.sleep(600)", "import os; os.abort()"]
)
def test_whatever_wandb_does_the_work_is_done_and_its_figures_are_kept(broken: str, tmp_path: Path) -> None:
    (tmp_path / "lib" / "wandb").mkdir(parents=True)
    (tmp_path / "lib" / "wandb" / "__init__.py").write_text(broken + "\n")
    done = stage(tmp_path, "offline", "2", PYTHONPATH=f"{tmp_path / 'lib'}:{ROOT}")
    assert (done.returncode, done.stdout) == (0, "the work is done False\n"), done.stderr
    assert "wandb did not take all figures" in done.stderr
    (curves,) = (tmp_path / "logs/wandb").glob("curves-*.jsonl")
    assert "cloning/loss" in curves.read_text()


def test_a_login_alone_turns_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert [wandb_mode(mode) for mode in ("auto", "offline", "disabled")] == ["disabled", "offline", "disabled"]
    assert wandb_mode("online") == "offline", "without a key, and a line says so"
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password 0123456789\n")
    (tmp_path / "netrc").chmod(0o600)
    assert [wandb_mode(mode) for mode in ("auto", "online")] == ["online", "online"]
    for said, meant in (
        ("disabled", "disabled"),
        ("offline", "offline"),
        ("dryrun", "offline"),
        ("no such", "disabled"),
    ):
        monkeypatch.setenv("WANDB_MODE", said)
        assert wandb_mode("auto") == meant
