"""Expansion: the points of a specification, each with its resolved configuration, checked before anything runs.

    for point in expand(read_spec(path)):
        point.run, point.values, point.text        # run_001, {"lr": 0.001}, what the run reads, byte for byte

The grid is the full product of the sweep's keys, the groups of `zip` and the seeds, in the order of the file. A key
without a dot replaces the whole key, a dotted one what it names within it. Two points that come to one configuration
are one. A point is named by the hash of what it runs and of its resolved configuration (`identity`), so that whoever
has run it already, has.
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
"""Refused points that an error line names."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration of an experiment."""

    run: str
    base: Path
    written: dict[str, Any]
    """The swept values, as they were written."""
    seed: int | None
    text: str
    """The resolved configuration, which is what the run reads."""
    identity: str
    """SHA-256 of what is run and of the resolved configuration."""

    @property
    def values(self) -> dict[str, Any]:
        """The swept values."""
        return {key: plain(value) for key, value in self.written.items()}

    @property
    def label(self) -> str:
        """The swept values as text; of a point from `configs`, its file."""
        return label_of(self.values, self.seed) or str(self.base)


def label_of(values: dict[str, Any], seed: int | None = None) -> str:
    """Values as `key=value` words."""
    told = {**values, **({} if seed is None else {"seed": seed})}
    return " ".join(f"{key}={shown_value(plain(value))}" for key, value in told.items())


def expand(spec: ExperimentSpec) -> list[Point]:
    """All points. Raises UsageError before anything runs where one of them cannot: it names the points and the reason
    of each."""
    points: dict[str, Point] = {}
    refused: list[str] = []
    resolve = _resolver(spec)
    twins = 0
    for number, (base, written, seed) in enumerate(_drawn(spec), start=1):
        run = f"run_{number:03d}"
        try:
            tree = _overlaid(spec, base, written, seed)
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
        logger.info("  %d points come to the same configuration as another one; each is run once", twins)
    return [replace(point, run=f"run_{number:03d}") for number, point in enumerate(points.values(), start=1)]


def with_value(spec: ExperimentSpec, point: Point, key: str, value: Any, run: str) -> Point:
    """The same point with one more key set: a rung of early stopping. Raises UsageError as `expand` does."""
    tree = _overlaid(spec, point.base, point.written, point.seed)
    assign(tree, key, copy.deepcopy(value))
    text, content = _resolver(spec)(tree)
    return replace(point, run=run, text=text, identity=json_sha256(content))


def assign(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a key: without a dot the whole of it, with dots what it names. Raises UsageError where a dot reaches into
    what is no section."""
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{key}: {'.'.join(sections[: depth + 1])} is {shown(str(inner))}, no section")
        tree = inner
    tree[last] = value


Drawn = tuple[Path, dict[str, Any], int | None]


def _drawn(spec: ExperimentSpec) -> Iterator[Drawn]:
    """(base, swept values, seed) of every point that the filters keep."""
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
        whole = plain(_overlaid_tree(spec, base, values, None))
        values = {key: value for key, value in values.items() if matches(spec.when.get(key, {}), whole)}
        whole = _overlaid_tree(spec, base, values, None)
        for seed in seeds:
            seeded = plain(_overlaid_tree(spec, whole, {}, seed) if seed is not None else whole)
            if not any(matches(condition, seeded) for condition in spec.exclude):
                yield spec.base_config, values, seed


def _overlaid(spec: ExperimentSpec, path: Path, values: dict[str, Any], seed: int | None) -> dict[str, Any]:
    return _overlaid_tree(spec, _base(path), values, seed)


def _overlaid_tree(
    spec: ExperimentSpec, base: dict[str, Any], values: dict[str, Any], seed: int | None
) -> dict[str, Any]:
    """base < fixed_overrides < sweep < seed."""
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
    """A line for each swept key that the base of a command does not have: a misspelt key would sweep nothing."""
    if not spec.command:
        return  # R2V's own configurations refuse an unknown key
    for key in (*spec.sweep, *(key for group in spec.zip for key in group), *spec.fixed_overrides):
        if not has(base, key):
            logger.warning(
                "%s line %d: %s has no %s; %s",
                spec.path,
                spec.tree.line("sweep", key),
                spec.base_config,
                key,
                nearest(key, base),
            )


Resolve = Callable[[dict[str, Any]], tuple[str, Any]]
"""From a configuration tree to the YAML that the run reads, and what names the point."""


def _resolver(spec: ExperimentSpec) -> Resolve:
    if spec.command:
        files = program_of(spec)
        return lambda tree: (
            write(plain(tree)),
            {"command": list(spec.command), "files": files, "config": plain(tree), "mode": spec.mode},
        )
    return lambda tree: _of_pipeline(spec, tree)


def program_of(spec: ExperimentSpec) -> dict[str, str]:
    """The files of this folder that the command names, with their hashes; {} for a stage of the pipeline."""
    return {word: content_sha256(Path(word)) for word in spec.command if Path(word).is_file()}


def _of_pipeline(spec: ExperimentSpec, tree: dict[str, Any]) -> tuple[str, Any]:
    """The whole configuration of R2V, checked as the stage would check it."""
    from r2v.config import identity, to_yaml
    from r2v.experiments.point import config_of, require_runnable

    config = config_of(tree)
    require_runnable(spec.stage, config)
    return to_yaml(config), {"stage": spec.stage or spec.mode, "config": identity(config)}


def shown_value(value: Any) -> str:
    """A value as a table and a label show it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{','.join(map(shown_value, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
