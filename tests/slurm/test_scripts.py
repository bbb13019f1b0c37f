"""The scripts that a user types after sbatch: their words become `r2v`'s, wherever Slurm puts the script."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.cli.options import load_config
from r2v.errors import UsageError
from r2v.slurm.job.script_args import expand
from r2v.slurm.site import headers
from r2v.storage import paths

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / paths.SCRIPTS
JOBS = sorted(
    path.name for path in SCRIPTS.glob("*.sh") if path.name not in ("env.sh", "run_all.sh", "serve.sh", "teacher.sh")
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a clone whose `python` records its arguments instead of running."""
    for name in ("scripts/slurm", "configs"):
        shutil.copytree(REPOSITORY / name, tmp_path / "clone" / name)
    shutil.copy(REPOSITORY / "run_all.sh", tmp_path / "clone")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/bash\nprintf "%s\\n" "cwd=$PWD" "export=${SLURM_EXPORT_ENV-none}" "$@"\n')
    python.chmod(0o755)
    return tmp_path / "clone"


def bash(
    checkout: Path, *words: str | Path, cwd: Path, path: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    known = {"PATH": path or f"{checkout.parent / 'bin'}:{os.environ['PATH']}", "SLURM_EXPORT_ENV": "NONE", **env}
    return subprocess.run(["bash", *map(str, words)], cwd=cwd, env=known, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", JOBS)
def test_a_script_is_a_header_and_three_lines(name: str) -> None:
    lines = (SCRIPTS / name).read_text().splitlines()
    rest = [line for line in lines if line and not line.startswith("#")]
    assert lines[0] == "#!/bin/bash"
    assert rest[0] == 'cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||' and rest[1].endswith("exit 2; }")
    assert re.fullmatch(r'exec python -m r2v\.slurm\.job\.runner [\w .\-/]+ "\$@"', rest[2]) and len(rest) == 3
    wanted = headers.read(SCRIPTS / name).directives
    assert wanted["output"] == "logs/%x_%j.out" and wanted["open-mode"] == "append"
    assert wanted["signal"] == "B:USR2@120" and wanted["requeue"] == "" and "error" not in wanted


def test_logs_is_there_before_the_first_sbatch() -> None:
    """Slurm ends a job whose output folder is missing without a message."""
    assert (REPOSITORY / "logs" / ".gitkeep").is_file()


@pytest.mark.parametrize("name", JOBS)
def test_a_script_runs_from_the_spool_folder_of_a_node(name: str, checkout: Path, tmp_path: Path) -> None:
    spooled = tmp_path / "spool" / "job00042" / "slurm_script"
    spooled.parent.mkdir(parents=True)
    shutil.copy(checkout / "scripts" / "slurm" / name, spooled)
    done = bash(
        checkout,
        spooled,
        "webarena",
        "1 2 3",
        "--overrides",
        "a.b=1",
        cwd=spooled.parent,
        SLURM_SUBMIT_DIR=str(checkout),
    )
    assert done.returncode == 0, done.stderr
    cwd, export, *words = done.stdout.splitlines()
    assert (cwd, export) == (f"cwd={checkout}", "export=none")
    assert words[:2] == ["-m", "r2v.slurm.job.runner"] and words[-4:] == ["webarena", "1 2 3", "--overrides", "a.b=1"]


def test_a_script_typed_without_slurm_works_in_the_checkout(checkout: Path) -> None:
    done = bash(checkout, "scripts/slurm/07_train_router.sh", "desk", cwd=checkout)
    assert done.stdout.splitlines()[2:] == ["-m", "r2v.slurm.job.runner", "train_router", "desk"]


def test_a_script_from_elsewhere_ends_before_any_work(checkout: Path, tmp_path: Path) -> None:
    done = bash(checkout, checkout / "scripts/slurm/07_train_router.sh", "desk", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"no scripts/slurm/env.sh in {tmp_path}: cd to your project's root, then the same sbatch line"
    )


def test_no_python_is_one_line(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for tool in ("bash", "dirname"):
        (tmp_path / "empty" / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        [str(shutil.which("bash")), "scripts/slurm/07_train_router.sh", "desk"],
        cwd=checkout,
        env={"PATH": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (5, 1) and "no python here" in done.stderr


def test_the_environment_of_the_checkout_wins(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "activate").write_text("export PATH=$PWD/.venv/bin:$PATH\necho ${UNSET_BY_CONDA}\n")
    mine = checkout / ".venv" / "bin" / "python"
    mine.write_text("#!/bin/bash\necho mine\n")
    mine.chmod(0o755)
    done = bash(checkout, "scripts/slurm/07_train_router.sh", "desk", cwd=checkout)
    assert (done.returncode, done.stdout.split()) == (0, ["mine"]), done.stderr


@pytest.mark.parametrize("door", ["run_all.sh", "scripts/slurm/run_all.sh"])
def test_run_all_is_one_door_from_anywhere(door: str, checkout: Path, tmp_path: Path) -> None:
    done = bash(checkout, checkout / door, "webarena", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"cwd={checkout}"
    assert done.stdout.splitlines()[2:] == ["-m", "r2v", "run_all", "webarena", "--dry-run"]


LINES = {
    'collect webarena 500 "1 2 3"': "collect --config configs/webarena/noisy.yaml --num-episodes 500 --seeds 1 2 3",
    "collect webarena 500": "collect --config configs/webarena/noisy.yaml --num-episodes 500",
    'collect swebench "" "4 5" clean': "collect --config configs/swebench/clean.yaml --seeds 4 5",
    'perturb webarena "1 2 3"': "perturb --config configs/webarena/noisy.yaml --seeds 1 2 3",
    "train_policy webarena noisy bc": "train_policy --config configs/webarena/noisy.yaml --stage bc",
    "train_policy webarena clean": "train_policy --config configs/webarena/clean.yaml",
    "train_policy webarena noisy all --overrides training.lr=1e-5 policy.lora_r=8": (
        "train_policy --config configs/webarena/noisy.yaml --stage all --overrides training.lr=1e-5 policy.lora_r=8"
    ),
    "train_verifier webarena": "train_verifier --config configs/webarena/noisy.yaml",
    "generate_candidates webarena 5": "generate_candidates --config configs/webarena/noisy.yaml --K 5",
    "generate_router_features desk clean": "generate_router_features --config configs/desk/clean.yaml",
    "train_router webarena": "train_router --config configs/webarena/noisy.yaml",
    'evaluate webarena noisy "1 2 3 4 5" "r2v slm_only"': (
        "evaluate --config configs/webarena/noisy.yaml --seeds 1 2 3 4 5 --methods r2v slm_only"
    ),
    'ablations webarena "1 2 3"': "ablations --config configs/webarena/noisy.yaml --seeds 1 2 3",
    "train_hierarchical webarena": "train_hierarchical --config configs/webarena/noisy.yaml",
    "train_hierarchical": "train_hierarchical --config configs/hierarchical.yaml",
    "train_hierarchical --overrides seed=3": "train_hierarchical --config configs/hierarchical.yaml --overrides seed=3",
    "train_hierarchical --config configs/hierarchical.yaml": "train_hierarchical --config configs/hierarchical.yaml",
    "run --config configs/mrp.yaml": "run --config configs/mrp.yaml",
    "run --config configs/mrp.yaml --overrides seed=3": "run --config configs/mrp.yaml --overrides seed=3",
}


@pytest.mark.parametrize("line", LINES)
def test_positional_words_become_options(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = expand(shlex.split(line), REPOSITORY)
    assert words == LINES[line].split()
    monkeypatch.chdir(REPOSITORY)
    load_config(cli.build_parser().parse_args(words))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["collect", "webarina", "500"], "no configuration configs/webarina/noisy.yaml; did you mean webarena?"),
        (["train_policy", "webarena", "noisi"], "did you mean noisy?"),
        (["train_router"], "takes BENCHMARK [CONDITION]"),
        (["train_router", "--overrides", "seed=1"], "takes BENCHMARK [CONDITION]"),
        (["collect", "webarena", "500", "1", "2", "3"], "several seeds stand in one pair of quotes"),
        (["train_hierarchically", "webarena"], "no stage train_hierarchically; did you mean train_hierarchical?"),
    ],
)
def test_a_line_that_cannot_be_is_refused(line: list[str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(line, REPOSITORY)
    assert told in str(caught.value)


FAKE = Path(__file__).parent / "fake"


@pytest.mark.parametrize("name", JOBS)
def test_sbatch_takes_every_script(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sbatch", "--test-only", name],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{FAKE}:{os.environ['PATH']}", "SLURM_CONF": str(tmp_path / "slurm.conf")},
    )
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr
    assert json.loads((tmp_path / "calls.log").read_text()) == ["sbatch", "--test-only", name]
