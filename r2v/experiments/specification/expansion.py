"""Expansion: the points of a specification, each with its resolved configuration, checked before anything runs.

The grid is the full product of the sweep's keys, the groups of `zip` and the seeds, in the order of the file. A key
without a dot replaces the whole key, a dotted one the named value within it. Points with equal configurations are
merged. The identity of a point is the hash of its program and its resolved configuration, by which other experiments
reuse its result.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import plain, read_file, write
from r2v.constraints import shown
from r2v.errors import InputError, UsageError, nearest
from r2v.experiments.specification.conditions import has, holds, matches
from r2v.experiments.specification.spec import ExperimentSpec
from r2v.log import logger
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.files import content_sha256

SHOWN = 3
"""Number of refused points named in an error."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration of an experiment."""

    run: str
    base: Path
    written: dict[str, Any]
    """Swept values as written in the file."""
    seed: int | None
    text: str
    """Resolved configuration as the run reads it."""
    identity: str
    """SHA-256 of the program and the resolved configuration."""

    @property
    def values(self) -> dict[str, Any]:
        """Swept values."""
        return {key: plain(value) for key, value in self.written.items()}


def label_of(values: dict[str, Any], seed: int | None = None) -> str:
    """Return values and seed as `key=value` words."""
    seeded = {**values, **({} if seed is None else {"seed": seed})}
    return " ".join(f"{key}={shown_value(plain(value))}" for key, value in seeded.items())


def expand(spec: ExperimentSpec) -> list[Point]:
    """Return all points. Raise UsageError with the refused points and their reasons if any cannot run."""
    points: dict[str, Point] = {}
    refused: list[str] = []
    resolve = _resolver(spec)
    twins = 0
    for number, (base, written, seed) in enumerate(_drawn(spec), start=1):
        run = f"run_{number:03d}"
        try:
            tree = _overlaid(spec, _base(base), written, seed)
            values = plain(tree) if spec.checks else {}
            for check in spec.checks:
                if not holds(check, values):
                    raise UsageError(f"{check} does not hold")
            text, content = resolve(tree)
        except UsageError as error:
            label = label_of(written, seed) or str(base)
            refused.append(f"{run} ({label}): {error}")
            continue
        identity = json_sha256(content)
        twins += identity in points
        points.setdefault(identity, Point(run=run, base=base, written=written, seed=seed, text=text, identity=identity))
    if refused:
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise UsageError(f"{spec.path}: {len(refused)} points are refused: {'; '.join(refused[:SHOWN])}{more}")
    if not points:
        raise UsageError(f"{spec.path}: no point is left; exclude and when leave out all of them")
    if twins:
        logger.info("  duplicate points merged: points=%d", twins)
    return [replace(point, run=f"run_{number:03d}") for number, point in enumerate(points.values(), start=1)]


def with_value(spec: ExperimentSpec, point: Point, key: str, value: Any, run: str) -> Point:
    """Return the point with one more key set, for a rung of early stopping. Raise UsageError as `expand` does."""
    tree = _overlaid(spec, _base(point.base), point.written, point.seed)
    assign(tree, key, copy.deepcopy(value))
    text, content = _resolver(spec)(tree)
    return replace(point, run=run, text=text, identity=json_sha256(content))


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key of a tree in place. Raise UsageError if a part before the last dot is not a section."""
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{key}: {'.'.join(sections[: depth + 1])} is {shown(str(inner))}, no section")
        tree = inner
    tree[last] = value


Drawn = tuple[Path, dict[str, Any], int | None]


def _drawn(spec: ExperimentSpec) -> Iterator[Drawn]:
    """Yield (base, swept values, seed) of every point that passes the filters."""
    seeds: tuple[int | None, ...] = spec.seeds or (None,)
    if spec.base_config is None:
        yield from itertools.product(spec.configs, ({},), seeds)
        return
    base = _base(spec.base_config)
    _warn_of_strangers(spec, base)
    axes: list[list[dict[str, Any]]] = [[{key: value} for value in values] for key, values in spec.sweep.items()]
    for group in spec.zip:
        axes.append([dict(zip(group, values, strict=True)) for values in zip(*group.values(), strict=True)])
    for parts in itertools.product(*axes):
        values = {key: value for part in parts for key, value in part.items()}
        whole = plain(_overlaid(spec, base, values, None))
        values = {key: value for key, value in values.items() if matches(spec.when.get(key, {}), whole)}
        whole = _overlaid(spec, base, values, None)
        for seed in seeds:
            seeded = plain(_overlaid(spec, whole, {}, seed) if seed is not None else whole)
            if not any(matches(condition, seeded) for condition in spec.exclude):
                yield spec.base_config, values, seed


def _overlaid(spec: ExperimentSpec, base: dict[str, Any], values: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the configuration tree; precedence: base < fixed_overrides < sweep < seed."""
    tree = copy.deepcopy(base)
    for key, value in {**spec.fixed_overrides, **values}.items():
        assign(tree, key, copy.deepcopy(value))
    if seed is not None:
        assign(tree, spec.seed_key, seed)
    return tree


def _base(path: Path) -> dict[str, Any]:
    try:
        return read_file(path).mapping()
    except InputError as error:
        raise UsageError(f"{error}") from None


def _warn_of_strangers(spec: ExperimentSpec, base: dict[str, Any]) -> None:
    """Log each swept key that the base of a command lacks: a misspelt key would sweep nothing."""
    if not spec.command:
        return  # R2V's own configurations refuse an unknown key
    for key in (*spec.sweep, *(key for group in spec.zip for key in group), *spec.fixed_overrides):
        if not has(base, key):
            logger.warning(
                "swept key missing from the base: file=%s line=%d key=%s base=%s remedy=%s",
                spec.path,
                spec.tree.line("sweep", key),
                key,
                spec.base_config,
                nearest(key, base),
            )


Resolve = Callable[[dict[str, Any]], tuple[str, Any]]
"""Configuration tree -> (YAML of the run, content of the point's identity)."""


def _resolver(spec: ExperimentSpec) -> Resolve:
    if spec.command:
        files = program_of(spec)
        return lambda tree: (
            write(plain(tree)),
            {"command": list(spec.command), "files": files, "config": plain(tree), "mode": spec.mode},
        )
    return lambda tree: _of_pipeline(spec, tree)


def program_of(spec: ExperimentSpec) -> dict[str, str]:
    """Return the files named by the command -> their hashes; {} for a stage of the pipeline."""
    return {word: content_sha256(Path(word)) for word in spec.command if Path(word).is_file()}


def _of_pipeline(spec: ExperimentSpec, tree: dict[str, Any]) -> tuple[str, Any]:
    """Return YAML and identity of a complete R2V configuration, checked as the stage does."""
    from r2v.config import identity, to_yaml
    from r2v.experiments.point import config_of, require_runnable

    config = config_of(tree)
    require_runnable(spec.stage, config)
    return to_yaml(config), {"stage": spec.stage or spec.mode, "config": identity(config)}


def shown_value(value: Any) -> str:
    """Return a value as shown in tables and labels."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{','.join(map(shown_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
