"""Small real episodes for the tests of r2v.data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step, episode_id


def _play(
    task: str = "t1",
    seed: int = 1,
    actions: tuple[str, ...] = ("go", "stop"),
    *,
    success: bool = True,
    run_id: str | None = None,
    split: str | None = "train",
    perturbation_seed: int | None = None,
    text: str = "line one\nline two é",
    **fields: Any,
) -> Episode:
    steps = tuple(
        Step(step_idx=i, observation=Observation(raw_text=text), action=Action(raw_text=action))
        for i, action in enumerate(actions)
    )
    about = EpisodeMetadata(task_id=task, goal=f"do {task}", benchmark="desk", seed=seed, run_id=run_id, split=split)
    return Episode(
        episode_id=episode_id(task, seed, perturbation_seed),
        metadata=about,
        steps=steps,
        success=success,
        perturbation_seed=perturbation_seed,
        **fields,
    )


@pytest.fixture
def quick_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if there is one, for tests that sync thousands of times."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def play() -> Callable[..., Episode]:
    """Return a function that makes an episode of the given task, seed and actions."""
    return _play
