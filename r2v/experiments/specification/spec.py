"""Experiment specification: YAML file with an experiment's points and the program of each.

    name: lr_sweep                              # required
    mode: training                              # required: training or simulation
    base_config: configs/mrp.yaml               # and `sweep`, or else `configs: [FILE, ...]`
    fixed_overrides: {training.num_epochs: 2}   # base < fixed < sweep
    sweep: {router.budget: [0.1, 0.2]}          # a full grid; a key without a dot replaces the whole key

Optional are `zip`, `exclude`, `when`, `seeds`, `checks`, `stage` or `command`, `metric`, `goal`, `asha`, `resources`.
Errors give the line of the mistake.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from r2v.config.yaml_text import Document, as_type, plain, read_file
from r2v.constraints import LARGEST_SEED, shown
from r2v.errors import InputError, UsageError, nearest
from r2v.experiments.specification.asha_rule import AshaRule, asha_rule
from r2v.experiments.specification.conditions import require_check
from r2v.log import logger
from r2v.pipeline.jobs import COMMANDS
from r2v.storage.files import content_sha256
from r2v.storage.paths import CONFIGS

if TYPE_CHECKING:
    from r2v.slurm.site.headers import Resources


Mode = Literal["training", "simulation"]
Goal = Literal["max", "min"]

SPECS = CONFIGS / "experiments"
"""Folder of specifications."""
FORMER_SPECS = Path("experiments/specs")
"""Folder of specifications in the first guide; a path below it is looked up in SPECS."""
STAGE = "train_policy"
"""Stage of `mode: training` without `stage` or `command`."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,79}")


@dataclass(frozen=True, kw_only=True)
class ExperimentSpec:
    """Specification as read by `read_spec`. Values of configuration keys (`sweep`, `fixed_overrides`, `zip`) are kept
    as written; the type of the key decides how they are parsed."""

    path: Path
    tree: Document
    sha256: str
    name: str
    mode: Mode
    base_config: Path | None = None
    configs: tuple[Path, ...] = ()
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    fixed_overrides: dict[str, Any] = field(default_factory=dict)
    zip: tuple[dict[str, list[Any]], ...] = ()
    """Groups of keys whose values are paired in order; the groups multiply with the grid."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Conditions that exclude a point: key -> value, or a list of values; all keys of one condition must match."""
    when: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Swept key -> condition under which it is swept; otherwise it keeps the base's value."""
    seeds: tuple[int, ...] = ()
    seed_key: str = "seed"
    checks: tuple[str, ...] = ()
    """Expressions that must hold in every point's configuration, such as `len(lambda_ace) == layers - 1`."""
    stage: str | None = None
    command: tuple[str, ...] = ()
    """Command line of a user's program; {config} and {run_dir} are filled in."""
    metric: str | None = None
    goal: Goal = "max"
    asha: AshaRule | None = None
    resources: dict[str, str] = field(default_factory=dict)
    """Sbatch directives of a run that is one Slurm job."""

    @property
    def runs(self) -> str:
        """Command of a point as text."""
        if self.command:
            return shlex.join(self.command)
        return "simulation" if self.mode == "simulation" else f"r2v {self.stage}"


def located(path: Path) -> Path:
    """Return the file of a specification, former paths included. Raise InputError if it is missing."""
    if path.exists():
        return path
    parts = path.parts
    if parts[:2] == FORMER_SPECS.parts or (len(parts) > 2 and path.parts[-3:-1] == FORMER_SPECS.parts):
        current = SPECS / path.name
        if current.exists():
            logger.warning("specification found at its new path: requested=%s used=%s", path, current)
            return current
    there = sorted(file.name for file in SPECS.glob("*.yaml"))
    raise InputError(
        f"{path}: no such specification; {nearest(path.name, there) if there else f'write one in {SPECS}'}"
    )


def read_spec(path: Path) -> ExperimentSpec:
    """Read and check a specification. Raise InputError if it is missing, UsageError with the line of the first
    mistake."""
    path = located(path)
    tree = read_file(path)
    values = tree.value
    _require_known(tree)
    mode = _choice(tree, "mode", get_args(Mode))
    command, stage = _command(tree), _stage(tree, mode)
    spec = ExperimentSpec(
        path=path,
        tree=tree,
        sha256=content_sha256(path),
        name=_name(tree),
        mode=mode,
        base_config=Path(_text(tree, "base_config")) if "base_config" in values else None,
        configs=tuple(Path(item) for item in _texts(tree, "configs")),
        sweep=_axes(tree, ("sweep",)),
        fixed_overrides=_mapping(tree, "fixed_overrides"),
        zip=_groups(tree),
        exclude=tuple(_conditions(tree)),
        when=_whens(tree),
        seeds=_seeds(tree),
        seed_key=_text(tree, "seed_key") if "seed_key" in values else "seed",
        checks=tuple(_checks(tree)),
        stage=stage,
        command=command,
        metric=_text(tree, "metric") if "metric" in values else None,
        goal=_choice(tree, "goal", get_args(Goal)),
        asha=asha_rule(tree),
        resources=resources_of(tree),
    )
    _require_consistent(spec)
    return spec


_KEYS = (
    *("name", "mode", "base_config", "configs", "sweep", "fixed_overrides", "zip", "exclude", "when", "seeds"),
    *("seed_key", "checks", "stage", "command", "metric", "goal", "asha", "resources"),
)


def _require_known(tree: Document) -> None:
    for key in tree.value:
        if key not in _KEYS:
            tree.refuse(f"unknown key; {nearest(key, _KEYS)}", key)
    for key in ("name", "mode"):
        if key not in tree.value:
            tree.refuse(f"{key} is missing; every specification has name and mode")
    if ("base_config" in tree.value) == ("configs" in tree.value):
        got = "both" if "configs" in tree.value else "neither"
        tree.refuse(f"must have base_config (with a sweep, if you like) or configs, got {got}", "configs")


def _name(tree: Document) -> str:
    name = _text(tree, "name")
    if not _NAME.fullmatch(name):
        tree.refuse(f"must be letters, digits, _, . and -, at most 80, got {shown(name)}", "name")
    return name


def _choice(tree: Document, key: str, allowed: tuple[str, ...]) -> Any:
    """Return the value of a key with a few allowed words; default: the first."""
    word = tree.value.get(key, allowed[0])
    if word not in allowed:
        tree.refuse(f"must be {' or '.join(allowed)}, got {shown(str(word))}", key)
    return word


def _text(tree: Document, *keys: str) -> str:
    value = tree.value
    for key in keys:
        value = value[key]
    if not isinstance(value, str) or not value.strip():
        tree.refuse(f"must be text, got {shown(str(value))}", *keys)
    return value


def _texts(tree: Document, key: str) -> list[str]:
    values = tree.value.get(key, [])
    if not isinstance(values, list) or not all(isinstance(item, str) and item for item in values):
        tree.refuse(f"must be a list of texts, got {shown(str(values))}", key)
    if key in tree.value and not values:
        tree.refuse("is empty; name at least one", key)
    return values


def _mapping(tree: Document, *keys: str | int) -> dict[str, Any]:
    value: Any = tree.value
    for key in keys:
        value = value.get(key, {}) if isinstance(value, dict) else value[key]
    if not isinstance(value, dict):
        tree.refuse(f"must be keys with values, got {shown(str(value))}", *keys)
    return value


def _axes(tree: Document, keys: tuple[str | int, ...]) -> dict[str, list[Any]]:
    axes = _mapping(tree, *keys)
    for key, values in axes.items():
        if not isinstance(values, list):
            tree.refuse(
                f"must be a list of values, each of which is one candidate, got {shown(str(values))}", *keys, key
            )
        if not values:
            tree.refuse("is empty; name at least one value", *keys, key)
        candidates = plain(values)
        again = next((item for index, item in enumerate(candidates) if item in candidates[:index]), None)
        if again is not None and not isinstance(again, bool):
            tree.refuse(f"{shown(str(again))} is listed twice", *keys, key)
    return axes


def _groups(tree: Document) -> tuple[dict[str, list[Any]], ...]:
    """Return the groups of `zip`, which is a list of groups or one group."""
    groups = tree.value.get("zip", [])
    if not isinstance(groups, (dict, list)):
        tree.refuse("must be a group of keys with lists of one length, or a list of such groups", "zip")
    stems: list[tuple[str | int, ...]] = [("zip",)]
    if isinstance(groups, list):
        stems = [("zip", index) for index in range(len(groups))]
    checked = []
    for stem in stems:
        axes = _axes(tree, stem)
        lengths = {key: len(values) for key, values in axes.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            tree.refuse(f"values that go together must be as many: {counts}", *stem)
        if not axes:
            tree.refuse("is empty; name keys with values", *stem)
        checked.append(axes)
    return tuple(checked)


def _conditions(tree: Document) -> list[dict[str, Any]]:
    rows = tree.value.get("exclude", [])
    if not isinstance(rows, list):
        tree.refuse("must be a list of conditions, such as [{lr: 0.1, scheduler: cosine}]", "exclude")
    return [plain(_mapping(tree, "exclude", index)) for index in range(len(rows))]


def _whens(tree: Document) -> dict[str, dict[str, Any]]:
    return {key: plain(_mapping(tree, "when", key)) for key in _mapping(tree, "when")}


def _seeds(tree: Document) -> tuple[int, ...]:
    seeds = as_type(tree.value.get("seeds", []), list[int])
    fine = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    if not fine or len(set(seeds)) < len(seeds):
        tree.refuse(f"must be a list of different whole numbers, at least 0, got {shown(str(seeds))}", "seeds")
    return tuple(seeds)


def _checks(tree: Document) -> list[str]:
    checks = _texts(tree, "checks")
    for index, check in enumerate(checks):
        try:
            require_check(check)
        except UsageError as error:
            tree.refuse(str(error), "checks", index)
    return checks


def _stage(tree: Document, mode: Mode) -> str | None:
    if "stage" not in tree.value:
        return STAGE if mode == "training" and "command" not in tree.value else None
    stage, names = _text(tree, "stage"), [row.name for row in COMMANDS]
    if mode == "simulation":
        tree.refuse("simulation trains nothing; leave stage out", "stage")
    if stage not in names:
        tree.refuse(f"no stage {shown(stage)}; {nearest(stage, names)}", "stage")
    if "command" in tree.value:
        tree.refuse("a point runs a stage or a command, not both", "stage")
    return stage


def _command(tree: Document) -> tuple[str, ...]:
    command = tree.value.get("command")
    if command is None:
        return ()
    words = command if isinstance(command, list) else [command]
    if not all(isinstance(word, str) and word for word in words) or not words:
        tree.refuse("must be a command line, or a list of its words", "command")
    try:
        words = words if isinstance(command, list) else shlex.split(command)
    except ValueError as error:
        tree.refuse(f"{error}", "command")
    if not any("{config}" in word for word in words):
        tree.refuse("has no {config}, where the point's configuration file goes", "command")
    return tuple(words)


def _require_consistent(spec: ExperimentSpec) -> None:
    """Raise UsageError for keys that contradict each other."""
    tree = spec.tree
    if spec.configs and (spec.sweep or spec.zip or spec.when):
        tree.refuse("configs names every point itself; a sweep needs a base_config", "sweep" if spec.sweep else "zip")
    axes = [("sweep", key) for key in spec.sweep] + [("zip", key) for group in spec.zip for key in group]
    if spec.seeds:
        axes.append(("seeds", spec.seed_key))
    for index, (source, key) in enumerate(axes):
        for other, earlier in axes[:index]:
            if key == earlier or key.startswith(f"{earlier}.") or earlier.startswith(f"{key}."):
                tree.refuse(f"{key} is set by {other} and by {source}; let one of them do it", source, key)
    swept = {key for _, key in axes}
    for key in spec.when:
        if key not in swept:
            tree.refuse(f"is no swept key; {nearest(key, swept) if swept else 'there is none'}", "when", key)
    if spec.asha is not None and spec.asha.resource in swept:
        tree.refuse("the resource cannot be swept as well", "asha", "resource")


def resources_of(tree: Document) -> dict[str, str]:
    """Return the directives of a specification, possibly none. Raise UsageError with the line of a mistake."""
    from r2v.slurm.site.directives import check

    values = tree.value.get("resources", {})
    if not isinstance(values, dict):
        tree.refuse(f"must be sbatch's options with values, got {shown(str(values))}", "resources")
    if values and "command" not in tree.value and tree.value.get("mode") == "training":
        tree.refuse("is for a command or a simulation; a stage asks what the header of its script says", "resources")
    return {name: _directive(tree, name, value, check) for name, value in values.items()}


def _directive(tree: Document, name: str, value: Any, check: Any) -> str:
    """Return a directive's text, "" for a flag such as `exclusive: true`."""
    flag = plain(value)
    text = "" if flag is True else str(value)
    if isinstance(value, (dict, list)) or flag is False or flag is None:
        tree.refuse(f"must be a text or a number, got {shown(str(value))}", "resources", name)
    try:
        check(name, text, "")
    except UsageError as error:
        tree.refuse(str(error), "resources", name)
    return text


def job_resources(directives: Mapping[str, str]) -> Resources:
    """Return the resources of a run's job: those of jobs without a GPU, overridden by these directives."""
    from r2v.slurm.site import requests

    return requests.of_job(Path(), requests.CPU_SCRIPT, "").merged(directives)
