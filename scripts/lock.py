"""Make requirements/*.txt: every package's version, with the SHA-256 of all its files, for every Python and machine.

    make lock                       # adds new dependencies of pyproject.toml; all else keeps its version
    make lock UPGRADE="numpy rich"  # upgrades these to their newest; UPGRADE=all: all

uv resolves (`uv pip compile --universal --generate-hashes`). torch gets the hashes of its CPU builds as well, from
requirements/torch-cpu.txt: they are other files of the same version, which PyPI does not have. Dependencies of its CUDA
build alone go to cuda.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
CPU_BUILDS = FOLDER / "torch-cpu.txt"
CUDA = re.compile(r"(nvidia|cuda)-|triton$")
OLDEST, OLDEST_DEV = "3.11", "3.11.5"
"""The oldest Python that R2V runs on, and the oldest for its documentation's tools."""
NAME = re.compile(r"([\w.-]+)==(\S+)")

Blocks = dict[str, str]
"""Package -> its line, with the lines of its hashes and of its dependents."""


def blocks(text: str) -> Blocks:
    """Return the packages of a requirements file."""
    parts = re.split(r"\n(?=[\w])", "\n" + re.sub(r"^#.*\n", "", text, flags=re.M))
    return {match[1]: part.rstrip() + "\n" for part in parts if (match := NAME.match(part))}


def pin_of(block: str) -> re.Match[str]:
    """Match the start of a package's lines: the whole pin, its name, its version."""
    pin = NAME.match(block)
    assert pin is not None, block
    return pin


def resolved(extras: tuple[str, ...], python: str, pins: str) -> Blocks:
    """Resolve the project with these extras and its build backend, at versions that `pins` allow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(pins)
        constraints.flush()
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", "-", "--universal"]
        command += [
            "--python-version",
            python,
            "--generate-hashes",
            "--no-header",
            "--quiet",
            "--fork-strategy",
            "fewest",
        ]
        command += ["--constraints", constraints.name, *(word for extra in extras for word in ("--extra", extra))]
        done = subprocess.run(
            command, input="\n".join(project["build-system"]["requires"]), stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        if done.returncode:
            raise SystemExit(done.returncode)
        return blocks(re.sub(rf"^    #   -c {re.escape(constraints.name)}\n", "", done.stdout, flags=re.M))


def with_cpu_builds(torch: str) -> str:
    """Return torch's lines with the hashes of its CPU builds."""
    version = pin_of(torch)[2]
    builds = CPU_BUILDS.read_text()
    if f"\ntorch=={version}+cpu " not in builds:
        raise SystemExit(f"{CPU_BUILDS.name} is not of torch {version}; put its CPU builds' version and hashes there")
    hashes = set(re.findall(r"sha256:(\w{64})", torch + builds))
    head, via = torch.partition(" \\\n")[0], torch.partition("    # via")
    return " \\\n".join([head, *(f"    --hash=sha256:{value}" for value in sorted(hashes))]) + "\n" + "".join(via[1:])


def write(name: str, title: str, content: Blocks) -> None:
    """Write a set of packages."""
    text = f"# {title} Made by `make lock`.\n" + "".join(content[package] for package in sorted(content))
    (FOLDER / f"{name}.txt").write_text(text)
    print(f"requirements/{name}.txt: {len(content)} packages")


def main(upgrade: list[str]) -> None:
    """Resolve all sets, at the locked versions except for the packages to upgrade."""
    files = [] if upgrade == ["all"] else [path for path in FOLDER.glob("*.txt") if path != CPU_BUILDS]
    held = {name: block for path in files for name, block in blocks(path.read_text()).items()}
    pins = "".join(f"{pin_of(block)[0]}\n" for name, block in held.items() if name not in upgrade)
    extras = ("dev", "mutate", "lock", "miniwob")
    everything = resolved(extras, OLDEST_DEV, pins)
    pins = "".join(f"{pin_of(block)[0]}\n" for block in everything.values())
    core = resolved(("train",), OLDEST, pins)
    dev = resolved(("dev",), OLDEST_DEV, pins)
    for content in (everything, core, dev):
        content["torch"] = with_cpu_builds(content["torch"])
    write("core", "What R2V runs on, its extra [train] included.", {k: v for k, v in core.items() if not CUDA.match(k)})
    write(
        "cuda", "What torch's build of PyPI for Linux needs besides.", {k: v for k, v in dev.items() if CUDA.match(k)}
    )
    write(
        "dev", "What its tests and checks run on, core included.", {k: v for k, v in dev.items() if not CUDA.match(k)}
    )
    for extra in ("mutate", "lock", "miniwob"):
        own = resolved((extra,), OLDEST_DEV, pins)
        write(extra, f"What `make {extra}` needs besides.", {k: v for k, v in own.items() if k not in dev})


if __name__ == "__main__":
    main(sys.argv[1:])
