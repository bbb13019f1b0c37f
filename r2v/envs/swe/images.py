"""Container images of a data set, made before jobs need them: docker pulls, apptainer writes one file per image.

A file gets its name only when complete, so that a command that was stopped can be repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from r2v.envs.swe.containers import program
from r2v.envs.swe.instances import Instance
from r2v.envs.swe.opening import Opener, image_file
from r2v.errors import EnvironmentFault


def make_images(opener: Opener, instances: Sequence[Instance], *, say: Callable[[str], None]) -> list[str]:
    """Make all missing images, also after failures; return a line for each image that failed."""
    failed: list[str] = []
    for instance in instances:
        kind = opener.kind(instance)
        if kind not in ("docker", "apptainer"):
            continue
        try:
            outcome = _make_image(opener.images, instance.image, kind)
        except EnvironmentFault as error:
            failed.append(f"{instance.image or instance.instance_id}: {error}")
        else:
            say(f"{instance.image}: {outcome}")
    if not any(opener.kind(instance) in ("docker", "apptainer") for instance in instances):
        say("no instance of this data set is played in a container")
    return failed


def _make_image(images: Path, image: str, kind: str) -> str:
    """Make an image and return the outcome in words. Raises EnvironmentFault."""
    if not image:
        raise EnvironmentFault("names no image")
    if kind == "docker":
        _run(["docker", "pull", "--quiet", image])
        return "pulled"
    file = image_file(images, image)
    if file.exists():
        return "there"
    images.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    _run([program(), "--quiet", "build", "--force", str(draft), f"docker://{image}"])
    draft.rename(file)
    return f"{file}, {file.stat().st_size >> 20} MiB"


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise EnvironmentFault(f"{words[0]} cannot be started ({error})") from error
    if done.returncode:
        raise EnvironmentFault(" ".join(done.stderr.split())[-200:] or f"{words[0]} ended with {done.returncode}")
