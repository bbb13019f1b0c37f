"""Locked requirements: every package at one version, every file by its SHA-256."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CPU_BUILDS = REPOSITORY / "requirements" / "torch-cpu.txt"
LOCKS = {path.stem: path.read_text() for path in sorted(CPU_BUILDS.parent.glob("*.txt")) if path != CPU_BUILDS}
PACKAGE = re.compile(r"^([\w.-]+)==([^\s;\\]+)( ; [^\\]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
SETS = {name: {match[1]: match for match in PACKAGE.finditer(text)} for name, text in LOCKS.items()}

OF_USERS = {"babyai", "swebench", "textworld", "webarena"}
"""Extras that nothing here installs: the tests' own requirements of them have locks below r2v/envs/, and tests of
babyai and textworld are skipped without them."""


def test_every_line_of_a_lock_is_a_package_with_hashes() -> None:
    assert set(LOCKS) == {"core", "cuda", "dev", "lock", "miniwob", "mutate"}
    for name, text in LOCKS.items():
        left = PACKAGE.sub("", text)
        assert all(line.startswith(("#", "    #")) for line in left.splitlines()), name
        assert list(SETS[name]) == sorted(SETS[name])


def test_a_package_has_one_version_and_the_same_hashes_in_every_lock() -> None:
    for package in {name for names in SETS.values() for name in names}:
        assert len({(names[package][2], names[package][4]) for names in SETS.values() if package in names}) == 1, (
            package
        )
    assert set(SETS["core"]) <= set(SETS["dev"])
    assert not set(SETS["dev"]) & {name for own in ("cuda", "lock", "miniwob", "mutate") for name in SETS[own]}


def test_every_requirement_is_locked_at_a_version_that_it_allows() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    required = {"core": [*PROJECT["project"]["dependencies"], *extras["train"], *PROJECT["build-system"]["requires"]]}
    required |= {"dev": [line for name in ("gpu", "serve", "wandb", "docs", "dev") for line in extras[name]]}
    required |= {name: lines for name, lines in extras.items() if name in ("lock", "miniwob", "mutate")}
    assert set(extras) == {"gpu", "serve", "train", "wandb", "docs", "dev", "lock", "miniwob", "mutate"} | OF_USERS
    for name, lines in required.items():
        for requirement in map(Requirement, lines):
            if requirement.name != "r2v":
                assert requirement.specifier.contains(SETS[name][canonicalize_name(requirement.name)][2]), requirement


def test_every_floor_is_the_lowest_version_that_was_tested() -> None:
    lines = (REPOSITORY / "requirements" / "lowest.in").read_text().splitlines()
    lowest = {pin.name: pin.specifier for pin in map(Requirement, lines[1:])}
    extras = PROJECT["project"]["optional-dependencies"]
    floors = {
        floor.name: floor.specifier
        for floor in map(Requirement, [*PROJECT["project"]["dependencies"], *extras["train"], *extras["serve"]])
    }
    assert set(lowest) == set(floors)
    for name, pin in lowest.items():
        (floor,), (tested,) = floors[name], pin
        assert floor.operator == ">=" and Version(floor.version) == Version(tested.version), name


def test_torch_carries_the_hashes_of_its_cpu_builds_and_of_others() -> None:
    (builds,) = PACKAGE.finditer(CPU_BUILDS.read_text())
    own, hashes = (re.findall(r"sha256:(\w+)", lines) for lines in (builds[4], SETS["core"]["torch"][4]))
    assert builds[2] == f"{SETS['core']['torch'][2]}+cpu"
    assert len(set(own)) == 2 * 4 and set(own) < set(hashes) and len(hashes) >= 20


def test_cuda_s_libraries_stand_apart() -> None:
    gpu = re.compile(r"(nvidia|cuda)-|triton$")
    assert all(gpu.match(name) for name in SETS["cuda"]) and len(SETS["cuda"]) > 10
    assert not [name for names in SETS for name in SETS[names] if gpu.match(name) and names != "cuda"]


def test_the_makefile_installs_nothing_without_a_hash() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    (locked,) = re.findall(r"^LOCKED := (.*)", text, re.M)
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(locked.split())
    others = [line for line in text.splitlines() if re.search(r"pip3? install", line) and not line.startswith("LOCKED")]
    assert len(others) == 1 and {"--no-deps", "--no-build-isolation", "--no-index"} <= set(others[0].split())
    for name in (*LOCKS, "torch-cpu"):
        assert re.search(rf"\$\(LOCKED\)[^\n]* -r requirements/{name}\.txt", text), name
    for path in (".ci/run", ".github/workflows/check.yml"):
        assert "pip install" not in (REPOSITORY / path).read_text()


@pytest.mark.parametrize("tampered", [False, True])
def test_a_file_that_is_not_the_locked_one_is_refused(tmp_path: Path, tampered: bool) -> None:
    wheel = tmp_path / "things-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("things/data", "x = 1\n")
        archive.writestr("things-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: things\nVersion: 1.0\n")
        archive.writestr("things-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("things-1.0.dist-info/RECORD", "")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"things==1.0 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    if tampered:
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("things/more", "")
    words = re.findall(r"^LOCKED := \S+ (.*)", (REPOSITORY / "Makefile").read_text(), re.M)[0].split()
    command = [sys.executable, "-m", "pip", *words, "--no-index", "--find-links", str(tmp_path), "-r", str(lock)]
    done = subprocess.run([*command, "--target", str(tmp_path / "there")], capture_output=True, text=True)
    assert (done.returncode != 0) == tampered, done.stderr
    assert (tmp_path / "there" / "things/data").exists() != tampered
    assert not tampered or "DO NOT MATCH THE HASHES" in done.stderr
