"""What a stage's command was to make, and whether it is there: an exit code of 0 is not believed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from r2v.config import load
from r2v.errors import InputError
from r2v.storage import artifact as artifacts
from r2v.storage.paths import Places

_MADE = {
    "perturb": ("perturb",),
    "train_verifier": ("verifier",),
    "generate_candidates": ("candidates",),
    "generate_router_features": ("router_features",),
    "train_router": ("router",),
    "evaluate": ("evaluate",),
    "ablations": ("ablations",),
    "train_policy": ("bc", "candidates", "preference"),
}
"""Stage command -> the jobs whose places it fills."""


def places_of(words: Sequence[str], root: Path = Path()) -> Places:
    """Where a command publishes, from its --config and --overrides. Raises UsageError as `load` does."""
    config = load(_after(words, "--config")[0] if "--config" in words else None, _after(words, "--overrides"))
    return Places(benchmark=config.env.benchmark, condition=config.data.condition, prefix=config.prefix, root=root)


def made_by(words: Sequence[str]) -> tuple[str, ...]:
    """The jobs that a command does."""
    phase = _after(words, "--stage")
    return tuple(phase) if phase and phase != ["all"] else _MADE.get(words[0], ())


def unmade(words: Sequence[str], root: Path = Path()) -> str | None:
    """What a command that says it is done has left undone; None for nothing. One with an `--output` of its own
    is believed."""
    if "--output" in words:
        return None
    places = places_of(words, root)
    try:
        if words[0] == "collect":
            from r2v.data.registry import DataRegistry

            DataRegistry(places.data).latest_run(places.benchmark)
        for job in made_by(words):
            place = places.output(job)
            made = artifacts.read(place.resolve() if place.exists() else place)
            for name in made.files:
                made.file(name)
    except InputError as error:
        return str(error)
    return None


def _after(words: Sequence[str], option: str) -> list[str]:
    """The values that follow an option, up to the next one."""
    if option not in words:
        return []
    rest = list(words)[list(words).index(option) + 1 :]
    end = next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))
    return rest[:end]
