"""Opening: the shell that an instance is played in, and a fresh one of the same kind that it is graded in.

Where an instance's repository is on this disk, that is the sandbox; else its image, by apptainer or docker. `custom` is
an environment of mini-swe-agent's protocol, made with `image`, `cwd` and `timeout`; its class is named by the variable
R2V_SWEBENCH_SHELL, never by options, which may come from a stranger's folder.
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
"""The variable with the path package.module:Class of a custom environment."""


@dataclass(frozen=True, kw_only=True)
class Opener:
    """How shells are opened. `images`: the folder of apptainer's image files; `timeout`: seconds of a command."""

    environment: str
    images: Path
    timeout: int

    def __post_init__(self) -> None:
        if self.environment not in ENVIRONMENTS:
            raise UsageError(f"env.options.environment={self.environment}: allowed: {', '.join(ENVIRONMENTS)}")

    def kind(self, instance: Instance) -> str:
        """What an instance is played in."""
        if self.environment != "auto":
            return self.environment
        if instance.repository is not None:
            return "bubblewrap"
        return "docker" if shutil.which("docker") and not shutil.which("apptainer") else "apptainer"

    def open(self, instance: Instance) -> Shell:
        """A fresh shell with the repository at its base commit. Raises EnvironmentFault where there is none."""
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
        made_by = load_class(CUSTOM_SHELL, spec, (), Shell, by_user=True)
        shell: Shell = made_by(image=instance.image, cwd=TESTBED, timeout=self.timeout)
        return shell


def image_file(images: Path, image: str) -> Path:
    """Where apptainer's file of an image lies.

    >>> image_file(Path("images"), "swebench/sweb.eval.x86_64.a_1776_b:latest").name
    'swebench_sweb.eval.x86_64.a_1776_b_latest.sif'
    """
    return images / f"{image.replace('/', '_').replace(':', '_')}.sif"


@lru_cache(maxsize=64)
def built(instance: Instance, timeout: int) -> bytes:
    """The packed home of an instance, with its repository built. Raises EnvironmentFault where that fails."""
    if instance.repository is None:
        raise EnvironmentFault(f"instance {instance.instance_id}: {instance.repo} is no git repository here")
    home = laid_out(instance.repository, instance.base_commit)
    if not instance.setup_script:
        return home
    shell = BubblewrapShell(home, test_site(), timeout=timeout)
    done = shell.execute({"command": instance.setup_script}, TESTBED)
    if done["returncode"] != 0:
        said = str(done["exception_info"] or done["output"]).split()
        raise EnvironmentFault(f"{instance.instance_id} does not build: {' '.join(said)[-200:] or done['returncode']}")
    return shell.home
