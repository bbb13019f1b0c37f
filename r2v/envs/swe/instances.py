"""Instances: tasks in SWE-bench's format (swebench 5), from a JSON Lines file or a data set of the hub.

An instance whose `repo` is the path of a local git repository, relative to the file, is played in the sandbox; any
other needs its container `image`. Two optional fields are R2V's own: `split` and `setup_script`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.data.split import SPLITS
from r2v.envs.swe.home import BUNDLED_SET, bundled_instances
from r2v.errors import InputError, UsageError, nearest

_TEXTS = ("instance_id", "repo", "base_commit", "problem_statement", "eval_script", "log_parser", "eval_type")


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """A task. `repository` is the local repository, None if its world is a container image."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    eval_script: str
    log_parser: str
    eval_type: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    version: str = ""
    patch: str = ""
    image: str = ""
    split: str | None = None
    setup_script: str = ""
    """Run once in the sandbox when the repository is laid out; a status other than 0 is a fault of the world."""
    repository: Path | None = None


def load_instances(dataset: str, split: str) -> list[Instance]:
    """Return the instances of `bundled`, a .json or .jsonl file, or a data set of the hub, in order. Raises UsageError
    if the data set cannot be read, InputError for an invalid record."""
    if dataset == BUNDLED_SET:
        path = bundled_instances()
        return _parsed(path, path.read_text())
    if dataset.endswith((".json", ".jsonl")):
        path = Path(dataset)
        try:
            return _parsed(path, path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"env.options.dataset={dataset}: cannot be read ({error}); name a file of instances"
            ) from error
    return [instance_of(record, Path(), dataset) for record in _of_the_hub(dataset, split)]


def _of_the_hub(dataset: str, split: str) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        loaded: Iterable[Mapping[str, Any]] = load_dataset(dataset, split=split)
    except Exception as error:  # the hub's client has no common base class of errors
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"env.options.dataset={dataset}: the hub does not give split {split} ({reason}); download it where "
            f"there is a network, name a local .jsonl file, or take the set of `r2v swebench install` ({BUNDLED_SET})"
        ) from error
    return loaded


def _parsed(path: Path, text: str) -> list[Instance]:
    try:
        records = (
            json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
        )
    except ValueError as error:
        raise InputError(f"{path}: no JSON ({error}); a line is one instance") from error
    if not records:
        raise InputError(f"{path}: holds no instance; a line is one instance")
    return [instance_of(record, path.parent, str(path)) for record in records]


def instance_of(record: Mapping[str, Any], folder: Path, where: str) -> Instance:
    """Return the instance of a record; `folder` is the base of a local repository's path. Raises InputError."""
    name = record.get("instance_id") if isinstance(record, Mapping) else None
    label = f"{where}: instance {name if isinstance(name, str) else '?'}"
    if not isinstance(record, Mapping):
        raise InputError(f"{where}: holds a {type(record).__name__}; expected an instance (an object)")
    if lacks := [field for field in _TEXTS if not isinstance(record.get(field), str) or not record[field].strip()]:
        raise InputError(f"{label}: lacks {', '.join(lacks)}; take a data set in the format of swebench 5")
    if (split := record.get("split")) is not None and split not in SPLITS:
        raise InputError(f"{label}: split is {split!r:.40}; allowed: {', '.join(SPLITS)}, or none")
    repository = folder / record["repo"]
    bare = (repository / "objects").is_dir() and (repository / "HEAD").is_file()
    texts = {field: str(record.get(field) or "") for field in ("version", "patch", "image", "setup_script")}
    return Instance(
        **{field: record[field] for field in _TEXTS},
        **texts,
        fail_to_pass=_tests(record, "FAIL_TO_PASS", label),
        pass_to_pass=_tests(record, "PASS_TO_PASS", label),
        split=split,
        repository=repository.resolve() if bare or (repository / ".git").exists() else None,
    )


def _tests(record: Mapping[str, Any], field: str, label: str) -> tuple[str, ...]:
    """Return test names from a list, or from a list encoded as JSON, as the hub has it."""
    value = record.get(field)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{label}: {field} is {value!r:.40}; expected a list of tests")
    return tuple(value)


def chosen(instances: Sequence[Instance], ids: Sequence[str] | None) -> list[Instance]:
    """Return the instances of these ids in the data set's order, all for None. Raises UsageError for an unknown id."""
    if ids is None:
        return list(instances)
    available = {instance.instance_id for instance in instances}
    for name in ids:
        if name not in available:
            raise UsageError(f"env.options.instances: no instance {name!r}; {nearest(str(name), sorted(available))}")
    return [instance for instance in instances if instance.instance_id in set(ids)]
