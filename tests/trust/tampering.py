"""Tampering: one value of a results folder is changed and everything that follows from it is made consistent.

Tables are rebuilt by R2V's own code and every hash is computed again, so only the values that the audit recomputes, or
compares with another source, can reveal a lie.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from r2v.cli.main import main
from r2v.config import Config
from r2v.data.episode import Episode
from r2v.evaluation.audit.check_inputs import AttemptRecord
from r2v.evaluation.audit.rebuild_tables import rebuild
from r2v.evaluation.audit.unproved import UNPROVED
from r2v.evaluation.calibration import RouterStates
from r2v.evaluation.setup import CalibrationRecord, Setup
from r2v.router.labels import FeatureRow
from r2v.storage.artifact_manifest import ArtifactManifest, json_sha256
from r2v.storage.files import content_sha256
from r2v.storage.integrity import content_files
from tests.trust.alter import LeafPath, leaves, read_records, rewrite, write_records

KINDS: dict[str, tuple[str, ...]] = {
    "episodes": ("episodes/*/*.jsonl.zst", "episodes/*/frontier/*.jsonl.zst"),
    "plays": ("calibration/*.jsonl.zst", "calibration/router/*.jsonl.zst"),
    "states": ("calibration/router/states.json",),
    "branches": ("branches/*/*.jsonl.zst",),
    "gains": ("gains/*.jsonl",),
    "setup": ("setup.json",),
    "calibration": ("calibration.json",),
    "artifact": ("artifact.json",),
    "attempt": ("attempt.meta.json",),
    "config": ("config.yaml",),
    "tables": ("structured_results/*.json",),
}
"""Records of a results folder, by the files that hold them; the CSV and LaTeX tables are compared as bytes."""

RECORDS: dict[str, Any] = {
    "episodes": Episode,
    "plays": Episode,
    "states": RouterStates,
    "branches": Episode,
    "gains": FeatureRow,
    "setup": Setup,
    "calibration": dict[str, CalibrationRecord],
    "artifact": ArtifactManifest,
    "attempt": AttemptRecord,
    "config": Config,
    "tables": object,
}
"""Type of the records of each kind."""


def copy_results(project: Path, target: Path) -> Path:
    """Copy the results of a project alone, as a third party receives them; hard links, so replace files, never write
    into them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree((project / "results" / "micro").resolve(), target, copy_function=os.link)
    return target


def verify(results: Path, *options: str) -> tuple[int, str, str]:
    """Run `r2v verify-results` in this process; return exit code, standard output and error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["verify-results", str(results), *options])
    return code, out.getvalue(), err.getvalue()


def make_consistent(results: Path) -> None:
    """Rebuild all derived files and compute every hash again, as a deliberate forger would."""
    with contextlib.suppress(Exception):  # some lies allow no table; then the old ones stay
        for name, text in rebuild(results).items():
            path = results / "structured_results" / name
            if not path.exists() or path.read_text() != text:
                path.unlink(missing_ok=True)
                path.write_text(text)
    rehash(results)


def rehash(results: Path) -> None:
    """Write the hashes of the present files into artifact.json, if that is still a manifest."""
    path = results / "artifact.json"
    with contextlib.suppress(Exception):
        record = json.loads(path.read_text())
        record["files"] = content_files(results)
        record["config_sha256"] = content_sha256(results / "config.yaml")
        path_of_thresholds = results / "calibration.json"
        placed = json.loads(path_of_thresholds.read_text()) if path_of_thresholds.exists() else {}
        record["summary"]["thresholds"] = {name: entry["tau"] for name, entry in placed.items()}
        record.pop("sha256")
        write_records(path, [{**record, "sha256": json_sha256(record)}])


def files_of(results: Path, kind: str) -> list[Path]:
    """Return the files of a kind, sorted."""
    return sorted(path for pattern in KINDS[kind] for path in results.glob(pattern))


def read(path: Path) -> list[Any]:
    """Return the records of a file."""
    return [yaml.safe_load(path.read_text())] if path.suffix == ".yaml" else read_records(path)


def write(path: Path, records: list[Any]) -> None:
    """Write the records of a file; the inverse of `read`."""
    if path.suffix == ".yaml":
        rewrite(path, yaml.safe_dump(records[0], sort_keys=False).encode())
    else:
        write_records(path, records)


def pattern_of(record: Any, path: LeafPath) -> str:
    """Return a leaf's place in its schema: indices and names from data become a star, a router's scores its name."""
    words = ["*" if isinstance(step, int) or _is_data(step) else step for step in path]
    if words[0] == "router_scores" and len(words) > 1:
        words[1] = record["router_scores"][path[1]]["method"]
    return ".".join(words)


def _is_data(key: str) -> bool:
    """True if a key is data and no field: a method at a point, a file name."""
    return "@" in key or "/" in key or key.endswith((".json", ".jsonl", ".safetensors"))


def places(results: Path, kind: str) -> dict[str, tuple[Path, int, LeafPath]]:
    """Return one place (file, record, path) for every leaf pattern of a kind, the first with a value."""
    found: dict[str, tuple[Path, int, LeafPath]] = {}
    empty: dict[str, tuple[Path, int, LeafPath]] = {}
    for path in files_of(results, kind):
        for index, record in enumerate(read(path)):
            for leaf, value in _with_values(record):
                where = found if value not in (None, [], {}, "") else empty
                where.setdefault(pattern_of(record, leaf), (path, index, leaf))
    return {**empty, **found}


def _with_values(record: Any) -> Iterator[tuple[LeafPath, Any]]:
    for leaf in leaves(record):
        value = record
        for step in leaf:
            value = value[step]
        yield leaf, value


def plausible(value: Any) -> Any:
    """Return a value of the same kind that an honest record could hold. Raises LookupError if there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return round(0.9 * value + 0.05, 6)
    if isinstance(value, str) and value:
        return _other_text(value)
    if isinstance(value, (list, dict)) and value:
        return value[:-1] if isinstance(value, list) else dict(list(value.items())[1:])
    raise LookupError("nothing plausible")


def _other_text(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{16,64}", text):
        return text[:-1] + ("0" if text[-1] != "0" else "1")
    for one, other in (("slm", "llm_fallback"), ("noisy", "clean"), ("stop", "max_steps"), ("router", "budget")):
        if text in (one, other):
            return other if text == one else one
    return text + " "


def is_believable(operation: str, kind: str, leaf: LeafPath, before: Any) -> bool:
    """True if an alteration leaves the right type in the schema's range, and every leaf without a default. Other
    alterations are errors of form, which must be named wherever they are."""
    if operation in ("lie", "swap"):
        return True
    schema = RECORDS[kind]
    hint, has_default = declared_at(schema, leaf)
    if hint in (Any, object):  # below a value that may be any JSON
        return True
    if operation == "delete":
        return has_default
    if operation == "null" and before is not None:
        return type(None) in get_args(hint)
    if operation in ("null", "range", "type") and before is None:
        return bool({int, float} & set(get_args(hint)))  # these operations turn None into a number
    if operation == "range" and isinstance(before, (dict, list)):  # an emptied value
        return get_args(hint)[-1:] == (Any,) or all(
            declared_at(schema, (*leaf, step))[1] for step in (before if isinstance(before, dict) else (0,))
        )
    return operation in ("range", "huge") and (isinstance(before, bool) or hint is float)


def declared_at(hint: Any, leaf: LeafPath) -> tuple[Any, bool]:
    """Return the schema's facts about a leaf: its type (object if unknown), and True if it may be left out, as a field
    with a default and an item of a list may."""
    has_default = False
    for step in leaf:
        options = [one for one in get_args(hint) if one is not type(None)] if _is_union(hint) else [hint]
        hint = next((one for one in options if dataclasses.is_dataclass(one) or get_origin(one)), object)
        has_default = get_origin(hint) is list
        if dataclasses.is_dataclass(hint):
            item = {item.name: item for item in dataclasses.fields(hint)}.get(str(step))
            missing = dataclasses.MISSING
            has_default = item is not None and (item.default is not missing or item.default_factory is not missing)
            hint = get_type_hints(hint).get(str(step), object)
        else:
            hint = (*get_args(hint), object)[1 if get_origin(hint) is dict else 0]
    return hint, has_default


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def is_listed(kind: str, pattern: str) -> bool:
    """True if a leaf is listed as not proved. `*` stands for one step of its path, `.**` for all below."""
    listed = (leaf.partition(": ") for one in UNPROVED for leaf in one.leaves)
    return any(kind == of and re.fullmatch(_expression(path), pattern) for of, _, path in listed)


def _expression(listed: str) -> str:
    return re.escape(listed).replace(r"\.\*\*", r"(\..*)?").replace(r"\*", r"[^.]*")


def numbers_beyond(value: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield values that are no number of any honest record."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield "nan", lambda _: float("nan")
        yield "huge", lambda _: 10**400 if isinstance(value, int) else 1e308
