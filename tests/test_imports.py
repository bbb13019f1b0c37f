"""Import cost on a login node: none of its commands may load a heavy library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
HEAVY = {
    "torch",
    "transformers",
    "trl",
    "peft",
    "anthropic",
    "openai",
    "sklearn",
    "scipy",
    "datasets",
    "accelerate",
    "submitit",
    "wandb",
}
LIGHT = HEAVY | {"numpy", "omegaconf", "yaml"}

DOORS = {
    "import r2v": ("import r2v", LIGHT),
    "r2v --help": ("run('--help')", LIGHT),
    "r2v evaluate --help": ("run('evaluate', '--help')", LIGHT),
    "a usage error": ("run('colect')", LIGHT),
    "r2v config": ("run('config', '--overrides', 'training.lr=1e-5')", HEAVY),
    "r2v run --dry-run": ("run('run', '--dry-run')", HEAVY),
    "r2v plan": ("run('plan', '--gpu', '80GiB', '--overrides', 'seed=1')", HEAVY),
    "r2v check-env": ("run('check-env', 'chain')", HEAVY),
    "r2v import": ("open('a.jsonl', 'w').write('{}'); run('import', 'a.jsonl')", HEAVY),
    "r2v export of episodes": ("run('export', 'b', '--trajectories', 'a')", HEAVY),
    "r2v registry": ("run('registry')", HEAVY),
    "a stage that lacks its input": ("run('train_router')", HEAVY),
    "the registry": ("from r2v.data import DataRegistry; DataRegistry('data').summary()", HEAVY),
    "the results": ("from r2v.utils.results import ResultsManager", HEAVY),
    "planning": (
        """
from r2v.storage.artifact import fingerprint
from r2v.config import load
from r2v.pipeline.jobs import JOBS
for job in JOBS:
    sections = job.load().sections(load(None))
    fingerprint(job.stage, job.load().version, vars(sections), {})
""",
        HEAVY,
    ),
}

PREAMBLE = """
import sys
def run(*words):
    from r2v.cli.main import main
    try:
        main(words)
    except SystemExit:
        pass
"""


@pytest.mark.parametrize("door", DOORS)
def test_a_login_node_command_loads_nothing_heavy(door: str, tmp_path: Path) -> None:
    code, forbidden = DOORS[door]
    probe = "\nprint('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code + probe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )
    loaded = done.stderr.rpartition("LOADED")[2].split()
    assert "r2v" in loaded, done.stderr
    assert forbidden.intersection(loaded) == set()


def test_importing_changes_nothing(tmp_path: Path) -> None:
    """No output, no file, no warning, no signal handler."""
    code = (
        "import signal; before = signal.getsignal(signal.SIGTERM); import r2v, r2v.cli.main; "
        "assert signal.getsignal(signal.SIGTERM) is before"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
