"""Prefetch: download the models and images of a configuration, so that its jobs need no network.

    for item in downloads(config):
        print(item.what, item.here())
        item.fetch(print)

Afterwards its jobs run with HF_HUB_OFFLINE=1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from r2v.config import Config
from r2v.config.engines import JOB, VLLM
from r2v.envs.base import load_benchmark
from r2v.errors import EnvironmentFault
from r2v.storage.model_identity import CRITIC_MODEL, is_here, model_folder

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ToFetch:
    """A model, or the images of a benchmark."""

    what: str
    here: Callable[[], bool]
    fetch: Callable[[Say], None]


def downloads(config: Config) -> list[ToFetch]:
    """Return the models of a configuration and its benchmark's images, bundled ones left out."""
    models: list[tuple[str, str, str | None]] = []
    if not config.policy.is_api:
        models.append(("policy.model_name", config.policy.model_name, config.policy.revision))
    if config.teacher.engine in (VLLM, JOB):
        models.append(("teacher.model_name", config.teacher.model_name, None))
    if config.hierarchical.enabled and config.hierarchical.critic.published:
        models.append((CRITIC_MODEL, str(config.hierarchical.critic.model_name), None))
    items = [
        ToFetch(
            what=f"{key}={name}",
            here=partial(is_here, name, revision),
            fetch=partial(_fetch_model, key, name, revision),
        )
        for key, name, revision in models
    ]
    return [*items, *_images(config)]


def _fetch_model(key: str, name: str, revision: str | None, say: Say) -> None:
    say(f"{key}={name}: at {model_folder(name, revision, key=key)}")


def _images(config: Config) -> list[ToFetch]:
    """Return the container images of a benchmark whose worlds run in them."""
    from r2v.envs.swe import SweBench
    from r2v.envs.swe.images import make_images

    if config.env.benchmark != SweBench.name:
        return []
    benchmark = load_benchmark(SweBench.name, config.env.options)
    assert isinstance(benchmark, SweBench)
    kind = benchmark.opener.kind
    instances = [item for item in benchmark.instances.values() if kind(item) in ("docker", "apptainer")]
    if not instances:
        return []

    def fetch(say: Say) -> None:
        if failed := make_images(benchmark.opener, instances, say=say):
            raise EnvironmentFault(
                f"{len(failed)} images could not be made, first {failed[0]}; run the same command again"
            )

    return [ToFetch(what=f"{len(instances)} images of env.options.dataset", here=lambda: False, fetch=fetch)]
