"""Installation of the engine into its own virtual environment, from hash-pinned requirements.

vLLM pins its own versions of torch and transformers, so it never shares an environment with R2V. The requirements/
folder next to this file lists every package with the SHA-256 of its files; pip resolves nothing. vLLM is installed
last, so an environment that has it is complete.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.engines.release import installed_version
from r2v.storage.removal import Marker, NotOurs, make_own

Build = Literal["cpu", "cuda"]

REQUIREMENTS = Path(__file__).with_name("requirements")
STEPS: dict[Build, tuple[str, ...]] = {
    "cpu": ("cpu-torch.txt", "cpu.txt", "cpu-vllm.txt"),
    "cuda": ("cuda.txt", "cuda-vllm.txt"),
}
"""The files of requirements/, in the order in which they are installed."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Index of torch's CPU builds, tried if pip's configured indexes have none."""
ENGINE_MARKER = Marker(kind="engine")
_PYTHONS = ((3, 11), (3, 13))


def build_for_this_machine() -> Build:
    """Return cuda if the NVIDIA driver is installed, else cpu."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def install_engine(home: Path, build: Build, *, say: Callable[[str], None]) -> None:
    """Create the engine's environment at `home`, replacing an incomplete one made by R2V. Raises UsageError if `home`
    holds a complete engine or anything not made by R2V, EnvironmentFault if pip fails."""
    if (finished := installed_version(home)) is not None:
        raise UsageError(
            f"--home {home}: holds {' '.join(finished)} already, which `r2v engine show --home {home}` tries; to make "
            f"it anew, remove it first: rm -r {shlex.quote(str(home))}"
        )
    if not _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        raise EnvironmentFault(f"vLLM runs on Python 3.11 to 3.13, this is {sys.version.split()[0]}; use one of those")
    _begin(home)
    say(f"making {home}: {build} build, some gigabytes, some minutes")
    _call([sys.executable, "-m", "venv", str(home)], f"cannot make {home}")
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "--no-deps"]
    for name in STEPS[build]:
        words = [*pip, "-r", str(REQUIREMENTS / name)]
        if name == "cpu-torch.txt" and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            continue
        if name == "cpu-torch.txt":
            words += ["--extra-index-url", TORCH_CPU_INDEX]
        _call(words, f"pip cannot install {name}")
    say(try_engine(home))


def _begin(home: Path) -> None:
    """Create the empty folder of the environment, with R2V's marker in it."""
    try:
        make_own(home, ENGINE_MARKER, anew=True)
    except NotOurs as error:
        raise UsageError(f"--home {error}; or name an empty or a new folder") from None


def try_engine(home: Path) -> str:
    """Return a one-line description of the engine at `home`, after importing its server modules as a test. Raises
    EnvironmentFault if there is no engine or the import fails."""
    installed = installed_version(home)
    if installed is None:
        raise EnvironmentFault(f"no engine at {home}; `r2v engine install` makes one")
    probe = "import torch, vllm.entrypoints.openai.api_server; print(torch.__version__, torch.cuda.device_count())"
    text = _call([str(home / "bin" / "python"), "-c", probe], f"the engine at {home} cannot be imported")
    torch_version, gpus = text.splitlines()[-1].split()
    return f"{installed[0]} {installed[1]} at {home}, torch {torch_version}, GPUs it sees: {gpus}"


def _call(words: list[str], problem: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        last = " ".join(lines[-1].split())[:300] if lines else f"exit code {done.returncode}"
        raise EnvironmentFault(f"{problem}: {last}")
    return done.stdout
