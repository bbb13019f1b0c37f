"""Container shells in SWE-bench's images, by docker or, on clusters, by apptainer.

A container has no network, none of the caller's environment variables, and no access to the host's disk. Apptainer
needs an image file made beforehand (`r2v swebench images`), since jobs download and build nothing. Its writable layer
is a temporary folder that is removed with the world.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r2v.envs.swe.shells import OUTPUT_BYTES
from r2v.errors import EnvironmentFault
from r2v.storage.removal import TEMPORARY, make_own_temporary, remove_own

CONTAINER_VARIABLES = ("PAGER=cat", "GIT_PAGER=cat", "TERM=dumb", "PYTEST_ADDOPTS=-p no:cacheprovider")
_START_SECONDS = 600


class DockerShell:
    """A shell in a docker container that runs until `cleanup`."""

    def __init__(self, image: str, *, timeout: int) -> None:
        self._timeout = timeout
        self._name = f"r2v-{uuid.uuid4().hex[:12]}"
        words = ["docker", "run", "--detach", "--rm", "--init", "--network", "none", "--pids-limit", "512"]
        words += ["--memory", "8g", "--cap-drop", "NET_RAW", "--security-opt", "no-new-privileges", "--pull", "never"]
        run_client([*words, "--name", self._name, image, "sleep", "infinity"], f"docker cannot start {image}")

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command; see `r2v.envs.swe.shells.Shell`."""
        variables = [word for variable in CONTAINER_VARIABLES for word in ("--env", variable)]
        words = ["docker", "exec", *variables, "--workdir", cwd or "/testbed", self._name]
        return _run_command(words, action["command"], timeout or self._timeout)

    def cleanup(self) -> None:
        """End the container with all its processes."""
        subprocess.run(
            ["docker", "rm", "--force", self._name], capture_output=True, check=False, timeout=_START_SECONDS
        )


class ApptainerShell:
    """A shell in an apptainer image: each command is a process of its own over one writable layer, until `cleanup`."""

    def __init__(self, image: Path, *, timeout: int) -> None:
        if not image.exists():
            raise EnvironmentFault(f"no image {image}; `r2v swebench images` makes it, on a node with a network")
        self._timeout = timeout
        self._folder = make_own_temporary("r2v-apptainer-")
        self._words = [program(), "--quiet", "exec", "--containall", "--cleanenv", "--no-home", "--fakeroot"]
        self._words += ["--net", "--network", "none", "--overlay", str(self._folder)]
        self._words += [word for variable in CONTAINER_VARIABLES for word in ("--env", variable)]
        self._image = str(image)
        problem = f"apptainer cannot start {image.name} without a network and with fakeroot"
        try:  # so that a site's restriction is never mistaken for the output of an agent's command
            run_client([*self._words, "--pwd", "/", self._image, "true"], problem)
        except EnvironmentFault:
            self.cleanup()
            raise

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command; see `r2v.envs.swe.shells.Shell`."""
        words = [*self._words, "--pwd", cwd or "/testbed", self._image]
        return _run_command(words, action["command"], timeout or self._timeout)

    def cleanup(self) -> None:
        """Remove the writable layer."""
        remove_own(self._folder, TEMPORARY)


def program() -> str:
    """Return apptainer, or singularity if only that is installed. Raises EnvironmentFault without either."""
    for name in ("apptainer", "singularity"):
        if shutil.which(name):
            return name
    raise EnvironmentFault("apptainer is not installed; load its module, or set env.options.environment=docker")


def run_client(words: list[str], problem: str, seconds: float | None = _START_SECONDS) -> None:
    """Run a container client. Raises EnvironmentFault, which begins with `problem`, if it fails or takes longer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{problem}: {error}") from error
    if done.returncode:
        raise EnvironmentFault(f"{problem}: {' '.join(done.stderr.split())[-300:]}")


def _run_command(client: Sequence[str], command: str, seconds: int) -> dict[str, Any]:
    """Run a command by a container client without the caller's keys and return output, returncode and exception_info.
    Raises EnvironmentFault if the client cannot be started."""
    # The limit inside ends the command and its children before the client times out.
    words = [*client, "timeout", "--kill-after=5", str(seconds), "bash", "-lc", command]
    passed = {
        name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "USER") if name in os.environ
    }
    passed |= {name: value for name, value in os.environ.items() if name.startswith(("DOCKER_", "APPTAINER_CACHE"))}
    with tempfile.TemporaryFile() as output:
        try:
            status = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=passed,
                timeout=seconds + 30,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
        except OSError as error:
            raise EnvironmentFault(f"{words[0]} cannot be started ({error})") from error
        output.seek(0)
        content = output.read(OUTPUT_BYTES + 1)
    if status in (124, 137):
        why = f"it did not end within {seconds} s"
    elif len(content) > OUTPUT_BYTES:
        why = f"it printed more than {OUTPUT_BYTES >> 20} MiB"
    else:
        return {"output": content.decode(errors="replace"), "returncode": status, "exception_info": ""}
    return {"output": "", "returncode": -1, "exception_info": f"stopped: {why}; files that it wrote are kept"}
