"""Container images of a data set, made before jobs need them: docker pulls, apptainer writes one file per image.

A file gets its name only when complete, so that a command that was stopped can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from r2v.envs.swe.containers import program, run_client
from r2v.envs.swe.instances import Instance
from r2v.envs.swe.opening import Opener, image_file
from r2v.errors import EnvironmentFault


def make_images(opener: Opener, instances: Sequence[Instance], *, say: Callable[[str], None]) -> list[str]:
    """Make all missing images, also after failures; return a line for each image that failed."""
    failed: list[str] = []
    contained = [instance for instance in instances if opener.kind(instance) in ("docker", "apptainer")]
    for instance in contained:
        try:
            say(f"{instance.image}: {_make_image(opener.images, instance, opener.kind(instance))}")
        except EnvironmentFault as error:
            failed.append(str(error))
    if not contained:
        say("no instance of this data set is played in a container")
    return failed


def _make_image(images: Path, instance: Instance, kind: str) -> str:
    """Make an instance's image and return the outcome in words. Raises EnvironmentFault."""
    image = instance.image
    if not image:
        raise EnvironmentFault(f"{instance.instance_id}: names no image")
    if kind == "docker":
        run_client(["docker", "pull", "--quiet", image], image, seconds=None)
        return "pulled"
    file = image_file(images, image)
    if file.exists():
        return "there"
    images.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    run_client([program(), "--quiet", "build", "--force", str(draft), f"docker://{image}"], image, seconds=None)
    draft.rename(file)
    return f"{file}, {file.stat().st_size >> 20} MiB"
