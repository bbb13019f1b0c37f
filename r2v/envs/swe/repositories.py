"""Local repository at an instance's base commit, packed for the sandbox.

The pack has that one commit only: neither earlier history nor the later commit with the solution.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from functools import lru_cache
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.sandbox.working_folder import pack

WORK_TREE = "testbed"
"""The repository's folder in the home of a sandbox; /testbed is a link to it, as in SWE-bench's images."""
_ANY_COMMIT = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
_lock = threading.Lock()


def laid_out(repository: Path, commit: str) -> bytes:
    """Return a packed home with the repository at this commit. Raises EnvironmentFault if git fails."""
    with _lock:  # many episodes of one instance start at once; one of them fetches
        return _laid_out(repository, commit)


@lru_cache(maxsize=64)
def _laid_out(repository: Path, commit: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="r2v-") as home:
        tree = Path(home, "home", WORK_TREE)
        git(["init", "--quiet", "--template=", str(tree)], Path(home))
        source = ["--upload-pack", _ANY_COMMIT, repository.as_uri(), commit]
        git(["fetch", "--quiet", "--depth=1", *source], tree)
        git(["checkout", "--quiet", "-B", "main", "FETCH_HEAD"], tree)
        Path(tree, ".git", "FETCH_HEAD").unlink()  # contains a path of this machine
        return pack(home, ["home"])


def git(words: list[str], folder: Path, **variables: str) -> str:
    """Return the output of a git command run without the user's configuration. Raises EnvironmentFault if it fails."""
    environment = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder), "LC_ALL": "C"}
    safe = ["-c", "safe.directory=*", "-c", "protocol.file.allow=always", "-c", "core.autocrlf=false"]
    try:
        done = subprocess.run(
            ["git", *safe, *words],
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise EnvironmentFault(f"git cannot be started ({error}); install git") from error
    if done.returncode:
        output = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
        raise EnvironmentFault(f"git {words[0]} failed in {folder.name}: {output}")
    return done.stdout
