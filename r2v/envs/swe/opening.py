"""Factory of shells: one for an instance's episode, and a fresh one of the same kind for its grading.

An instance with a local repository gets the sandbox, any other its image in apptainer or docker. `custom` is an
environment of mini-swe-agent's protocol, created with `image`, `cwd` and `timeout`. The variable R2V_SWEBENCH_SHELL
names its class; options may not, since they may come from a folder of unknown origin.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from r2v.envs.swe.containers import ApptainerShell, DockerShell
from r2v.envs.swe.home import test_site
from r2v.envs.swe.instances import Instance
from r2v.envs.swe.repositories import laid_out
from r2v.envs.swe.shells import TESTBED, BubblewrapShell, Shell
from r2v.errors import EnvironmentFault, UsageError
from r2v.extensions import load_class

ENVIRONMENTS = ("auto", "bubblewrap", "docker", "apptainer", "custom")
"""Values of `env.options.environment`."""
CUSTOM_SHELL = "R2V_SWEBENCH_SHELL"
"""Variable with the path package.module:Class of a custom environment."""


@dataclass(frozen=True, kw_only=True)
class Opener:
    """Settings of new shells. `images`: the folder of apptainer's image files; `timeout`: seconds of a command."""

    environment: str
    images: Path
    timeout: int

    def __post_init__(self) -> None:
        if self.environment not in ENVIRONMENTS:
            raise UsageError(f"env.options.environment={self.environment}: allowed: {', '.join(ENVIRONMENTS)}")

    def kind(self, instance: Instance) -> str:
        """Return the kind of an instance's shell, one of ENVIRONMENTS except auto."""
        if self.environment != "auto":
            return self.environment
        if instance.repository is not None:
            return "bubblewrap"
        return "docker" if shutil.which("docker") and not shutil.which("apptainer") else "apptainer"

    def open(self, instance: Instance) -> Shell:
        """Return a fresh shell with the repository at its base commit. Raises EnvironmentFault if it cannot start."""
        kind = self.kind(instance)
        if kind == "bubblewrap":
            return BubblewrapShell(built(instance, self.timeout), test_site(), timeout=self.timeout)
        if not instance.image:
            raise EnvironmentFault(
                f"instance {instance.instance_id} names no image, and {instance.repo} is no repository here"
            )
        if kind == "docker":
            return DockerShell(instance.image, timeout=self.timeout)
        if kind == "apptainer":
            return ApptainerShell(image_file(self.images, instance.image), timeout=self.timeout)
        if not (spec := os.environ.get(CUSTOM_SHELL)):
            raise EnvironmentFault(f"env.options.environment=custom: {CUSTOM_SHELL} names no package.module:Class")
        shell_class = load_class(CUSTOM_SHELL, spec, (), Shell, by_user=True)
        shell: Shell = shell_class(image=instance.image, cwd=TESTBED, timeout=self.timeout)
        return shell


def image_file(images: Path, image: str) -> Path:
    """Return the path of apptainer's file of an image.

    >>> image_file(Path("images"), "swebench/sweb.eval.x86_64.a_1776_b:latest").name
    'swebench_sweb.eval.x86_64.a_1776_b_latest.sif'
    """
    return images / f"{image.replace('/', '_').replace(':', '_')}.sif"


@lru_cache(maxsize=64)
def built(instance: Instance, timeout: int) -> bytes:
    """Return the packed home of an instance with its repository built. Raises EnvironmentFault if that fails."""
    if instance.repository is None:
        raise EnvironmentFault(f"instance {instance.instance_id}: {instance.repo} is no git repository here")
    home = laid_out(instance.repository, instance.base_commit)
    if not instance.setup_script:
        return home
    shell = BubblewrapShell(home, test_site(), timeout=timeout)
    done = shell.execute({"command": instance.setup_script}, TESTBED)
    if done["returncode"] != 0:
        reason = " ".join(str(done["exception_info"] or done["output"]).split())[-200:] or done["returncode"]
        raise EnvironmentFault(f"{instance.instance_id} does not build: {reason}")
    return shell.home
