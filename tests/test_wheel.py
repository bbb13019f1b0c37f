"""Contents of the wheel: the package, its data, and no helper that only tests use."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import r2v
from r2v.slurm.site.new_project import shipped_files
from r2v.storage.artifact_manifest import PROJECT_FILES, code_identity
from tests.docs.pages import blocks_of

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"


@dataclass(frozen=True)
class Release:
    """Release artifacts: the source distribution, and the wheel built from it."""

    source: set[str]
    """Names in the source distribution, below its one folder: files and folders."""
    wheel: Path

    @property
    def names(self) -> set[str]:
        """Return the names in the wheel."""
        return set(zipfile.ZipFile(self.wheel).namelist())


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build from a copy: setuptools leaves its work beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in checked_in():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    code = "from pathlib import Path; from release import build; build(Path(), Path('../dist'))"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "scripts")},
        check=True,
    )
    (packed,), (wheel,) = (folder.parent.glob(f"dist/*.{kind}") for kind in ("tar.gz", "whl"))
    with tarfile.open(packed) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    return Release(source=source, wheel=wheel)


def checked_in() -> list[str]:
    """Return the files of the checkout that git does not ignore; in a source distribution, all its files."""
    if not (REPOSITORY / ".git").exists():
        return [path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.rglob("*") if path.is_file()]
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in listed if name and (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def installed(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` of a fresh environment with the wheel and the packages that it needs, and nothing of ours."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(release.wheel))
    subprocess.run([sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), *install], check=True)
    return folder / "bin"


def test_a_source_distribution_is_the_whole_checkout(release: Release) -> None:
    assert set(checked_in()) <= release.source


def test_a_wheel_holds_the_package_and_nothing_else(release: Release) -> None:
    here = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*.py")}
    assert {name for name in release.names if name.endswith(".py")} == here
    assert {name.split("/")[0] for name in release.names} == {"r2v", f"r2v-{r2v.__version__}.dist-info"}


def test_a_wheel_holds_the_data_that_the_package_reads(release: Release) -> None:
    data = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in data if Path(name).suffix not in {".py", ".pyc"}} <= release.names
    inside = f"r2v/{PROJECT_FILES}/"
    assert {name.removeprefix(inside) for name in release.names if name.startswith(inside)} == set(shipped_files())


def test_installed_it_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """The files of `r2v init` suffice for the whole chain, as Slurm jobs and locally."""

    def typed(*words: str) -> str:
        home = {
            "HOME": str(tmp_path),
            "SLURM_CONF": str(slurm / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        path = f"{installed}:{REPOSITORY / 'tests' / 'slurm' / 'fake'}:/usr/bin:/bin"
        done = subprocess.run(
            words, cwd=project, env={**home, "PATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    project, slurm = tmp_path / "project", tmp_path / "slurm"
    project.mkdir(), slurm.mkdir()
    assert "configs/desk/noisy.yaml" in typed("r2v", "init", ".")
    assert {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()} == {
        *shipped_files(),
        ".gitignore",
        "scripts/slurm/site.yaml",
    }
    assert "10 submitted" in typed("bash", "run_all.sh", "desk")
    assert "stage done: stage=collect" in typed("r2v", "collect", "--config", "configs/mrp.yaml", "--num-episodes", "2")
    where = typed("python", "-c", "import r2v.pipeline.jobs as jobs; print(jobs.__file__)")
    assert where.startswith(str(installed.parent))


def test_in_a_folder_of_its_own_it_runs_too(installed: Path, release: Release, tmp_path: Path) -> None:
    """`pip install --target`: a folder on PYTHONPATH, without an environment's scripts and data."""
    target, empty = tmp_path / "target", tmp_path / "empty"
    empty.mkdir()
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(target))
    subprocess.run([sys.executable, "-m", "pip", *install, str(release.wheel)], check=True)
    code = (
        "import os, sys, r2v; from r2v.storage.artifact_manifest import code_identity; from r2v.cli.main import main\n"
        "names = [getattr(r2v, name) for name in r2v.__all__]\n"
        "dry = ['run', '--config', 'configs/mrp.yaml', '--dry-run']\n"
        "print(r2v.__file__, code_identity(), main(['init', 'mine']), os.chdir('mine'), main(dry))"
    )
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(empty), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(target)}
    command = [str(installed / "python"), "-P", "-c", code]
    done = subprocess.run(command, cwd=empty, env=alone, capture_output=True, text=True)
    assert done.stdout.endswith(f"\n{target}/r2v/__init__.py {code_identity()} 0 None 0\n"), done.stdout + done.stderr
    assert (empty / "mine" / "scripts" / "slurm" / "01_collect.sh").is_file()


TERMINALS = """
set -e
trap 'kill $(jobs -p)' EXIT
shown() {{ for _ in $(seq 600); do grep -qs "$1" "$2" && return; sleep 0.1; done; cat "$2"; exit 1; }}
{make}
( {emulate} ) > emulator 2>&1 &
shown 'export OPENAI' emulator
( {serve} ) > server 2>&1 &
shown 'export OPENAI' server
eval "$(grep '^export OPENAI' server)"
python ask.py
"""


@pytest.mark.whole
def test_the_first_page_on_serving_holds_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    """Every line of docs/quickstart-serve.md as it is typed, in three terminals, on free ports."""
    blocks = blocks_of(REPOSITORY / "docs" / "quickstart-serve.md")
    _, make, emulate, serve = (block.text for block in blocks if block.language == "bash")
    (ask,) = (block.text for block in blocks if block.language == "python")
    (tmp_path / "ask.py").write_text(ask)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = TERMINALS.format(make=make, emulate=emulate.strip(), serve=f"{serve.strip()} serve.port=0")
    path = f"{installed}:/usr/bin:/bin"
    alone = {"PATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = ["bash", "-c", script.replace("8765", port)]
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nsmall " in done.stdout, done.stdout


@pytest.mark.whole
def test_mypy_strict_passes_a_user_s_program(installed: Path, tmp_path: Path) -> None:
    """The program uses every public name; a name without a type would leave one of its `type: ignore` unused."""
    program = Path(__file__).parent / "library" / "user_program.py"
    used = {node.attr for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, ast.Attribute)}
    assert set(r2v.__all__) <= used
    shutil.copy(program, tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed / "python"), program.name]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_uses_every_module_that_it_ships() -> None:
    """Imported, named by a dotted path, or offered to users to import or run."""
    trees = {path.relative_to(REPOSITORY): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    used = {named for module, tree in trees.items() for node in ast.walk(tree) for named in names(node, dotted(module))}
    unused = {dotted(module) for module in trees if module.name != "__init__.py"} - used
    assert {name for name in unused if not name.startswith("r2v.perturb.categories.")} == OFFERED


OFFERED = {
    "r2v.__main__",
    "r2v.envs.webarena.regrader",
    "r2v.envs.worker.boot",
    "r2v.llm.engines.direct",
    "r2v.llm.engines.launcher",
    "r2v.llm.engines.require_key",
}
"""Modules for the interpreter, the shell, an engine's own Python, and environments in a child process."""


def dotted(path: Path) -> str:
    return path.with_suffix("").as_posix().replace("/", ".")


def names(node: ast.AST, module: str) -> set[str]:
    """Return the modules that a piece of source may mean: its imports, or a string like r2v.stages.evaluate:STAGE."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("r2v."):
        return {node.value.partition(":")[0]} - {module}
    return set()
