"""Instances: tasks in SWE-bench's format (swebench 5), from a JSON Lines file or a data set of the hub.

An instance whose `repo` is a git repository on this disk (its path, relative to the file) is played in a sandbox here;
any other needs its container `image`. Two fields are R2V's own and may be left out: `split` and `setup_script`.
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
    """One task. `repository` is the local repository, None where its world is a container image."""

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
    """Run in a sandbox once, when the repository is laid out; a status other than 0 is a fault of the world."""
    repository: Path | None = None


def load_instances(dataset: str, split: str) -> list[Instance]:
    """The instances of `bundled`, a .json or .jsonl file, or a data set of the hub, in their order. Raises UsageError
    where there are none to be had, InputError for a record that is no instance."""
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
    except Exception as error:  # whatever the hub's client raises
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
    """An instance of its record; `folder` is what the path of a local repository is relative to. Raises InputError."""
    name = record.get("instance_id") if isinstance(record, Mapping) else None
    said = f"{where}: instance {name if isinstance(name, str) else '?'}"
    if not isinstance(record, Mapping):
        raise InputError(f"{where}: holds a {type(record).__name__}, where an instance (an object) is asked for")
    if lacks := [field for field in _TEXTS if not isinstance(record.get(field), str) or not record[field].strip()]:
        raise InputError(f"{said}: lacks {', '.join(lacks)}; take a data set in the format of swebench 5")
    if (split := record.get("split")) is not None and split not in SPLITS:
        raise InputError(f"{said}: split is {split!r:.40}; allowed: {', '.join(SPLITS)}, or none")
    repository = folder / record["repo"]
    texts = {field: str(record.get(field) or "") for field in ("version", "patch", "image", "setup_script")}
    return Instance(
        **{field: record[field] for field in _TEXTS},
        **texts,
        fail_to_pass=_tests(record, "FAIL_TO_PASS", said),
        pass_to_pass=_tests(record, "PASS_TO_PASS", said),
        split=split,
        repository=repository.resolve() if _is_repository(repository) else None,
    )


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "objects").is_dir() and (path / "HEAD").is_file())


def _tests(record: Mapping[str, Any], field: str, said: str) -> tuple[str, ...]:
    """Names of tests: a list, or one as JSON, as the hub has it."""
    value = record.get(field)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{said}: {field} is {value!r:.40}, where a list of tests is asked for")
    return tuple(value)


def chosen(instances: Sequence[Instance], ids: Sequence[str] | None) -> list[Instance]:
    """The instances of these ids, in the data set's order; all where none are named. Raises UsageError for an id that
    is not there."""
    if ids is None:
        return list(instances)
    known = {instance.instance_id for instance in instances}
    for name in ids:
        if name not in known:
            raise UsageError(f"env.options.instances: no instance {name!r}; {nearest(str(name), sorted(known))}")
    return [instance for instance in instances if instance.instance_id in set(ids)]
