"""What is shipped: the package, its data, and no helper that only tests use."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from setuptools import build_meta

from r2v.slurm.site.new_project import shipped_files

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r2v"


@dataclass(frozen=True)
class Release:
    """What is released, built as a stranger would: the wheel of what the source distribution holds."""

    source: set[str]
    """The names in the source distribution, below its one folder."""
    wheel: Path

    @property
    def names(self) -> set[str]:
        """The names in the wheel."""
        return set(zipfile.ZipFile(self.wheel).namelist())


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Built of a copy: setuptools leaves its work beside what it builds."""
    folder = tmp_path_factory.mktemp("source")
    leave = shutil.ignore_patterns("__pycache__", "fake")
    for name in ("r2v", "configs", "scripts"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=leave)
    (folder / "tests").mkdir()
    shutil.copy(REPOSITORY / "tests" / "test_layout.py", folder / "tests")
    for name in ("pyproject.toml", "README.md", "LICENSE", "run_all.sh"):
        shutil.copy(REPOSITORY / name, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["setup.py"])
        patch.chdir(folder)
        packed = build_meta.build_sdist(str(folder))
        with tarfile.open(folder / packed) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        patch.chdir(unpacked)
        wheel = unpacked / build_meta.build_wheel(str(unpacked))
    source = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    return Release(source=source, wheel=wheel)


@pytest.fixture(scope="module")
def installed(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment that holds the wheel, beside the packages that it needs and nothing of ours."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(release.wheel))
    subprocess.run([sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), *install], check=True)
    return folder / "bin"


def test_a_wheel_holds_the_package_and_nothing_else(release: Release) -> None:
    here = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*.py")}
    assert {name for name in release.names if name.endswith(".py")} == here <= release.source
    tops = {name.split("/")[0] for name in release.names}
    assert tops == {"r2v", *(f"{release.wheel.name.split('-py3')[0]}.{kind}" for kind in ("data", "dist-info"))}


def test_a_wheel_holds_the_data_that_the_package_reads(release: Release) -> None:
    data = {path.relative_to(REPOSITORY).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in data if Path(name).suffix not in {".py", ".pyc"}} <= release.names
    shared = {name.partition("/data/share/r2v/")[2] for name in release.names if "/data/share/r2v/" in name}
    assert shared == set(shipped_files()) <= release.source


def test_installed_it_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """What `r2v init` writes is enough: the whole chain, as Slurm jobs and here."""

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
    assert "done, " in typed("r2v", "collect", "--config", "configs/mrp.yaml", "--num-episodes", "2")
    where = typed("python", "-c", "import r2v.pipeline.jobs as jobs; print(jobs.__file__)")
    assert where.startswith(str(installed.parent))


def test_the_package_uses_every_module_that_it_ships() -> None:
    """Imported, named by a dotted path, or one of those that people import or run."""
    trees = {path.relative_to(REPOSITORY): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    used = {named for module, tree in trees.items() for node in ast.walk(tree) for named in names(node, dotted(module))}
    unused = {dotted(module) for module in trees if module.name != "__init__.py"} - used
    assert {name for name in unused if not name.startswith("r2v.perturb.categories.")} == OFFERED


OFFERED = {
    "r2v.__main__",
    "r2v.envs.webarena.regrader",
    "r2v.envs.worker.boot",
    "r2v.llm.engines.launcher",
    "r2v.llm.engines.require_key",
}
"""For the interpreter, the shell, an engine's own Python, and worlds in a child process."""


def dotted(path: Path) -> str:
    return path.with_suffix("").as_posix().replace("/", ".")


def names(node: ast.AST, module: str) -> set[str]:
    """The modules that a piece of source may mean: what it imports, or a string like r2v.stages.evaluate:STAGE."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("r2v."):
        return {node.value.partition(":")[0]} - {module}
    return set()
