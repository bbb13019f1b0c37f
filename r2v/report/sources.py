"""Sources: the inputs of a report, read and checked.

A results folder alone is enough for every table, every figure of the evaluation and every episode. Where
they still exist, the ablations, the training losses of the models and the time of each stage are read too. Missing
inputs are named in `missing` and on the page: a report never leaves out a figure silently.

The folder may be a stranger's: only plain files of the size that R2V writes are opened, names are checked before a path
is made of them, and other folders are read only where these results lie in the project that made them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.data.schema import from_dict
from r2v.errors import InputError, R2VError
from r2v.evaluation.acting.acceptance import Verdict
from r2v.evaluation.audit.folder import require_small_files
from r2v.evaluation.setup import SETUP, Setup, read_setup
from r2v.evaluation.tables.build import STRUCTURED, require_results
from r2v.evaluation.tables.summary import ABLATIONS_FILE
from r2v.storage import durations
from r2v.storage.artifact import ATTEMPT, attempt_of
from r2v.storage.integrity import Artifact
from r2v.storage.paths import ARTIFACTS
from r2v.utils.results import ResultsManager

Row = dict[str, str]
"""A row of a CSV file, by column."""

_LOSSES = {"bc": ("bc_report.json", "losses"), "preference": ("dpo_report.json", "log")}
"""Stage -> the file of its losses, and their key there."""
_NAME = re.compile(r"\w[\w.-]*")
_LONGEST, _MOST, LARGEST = 2_000, 10_000, 1e15
"""Most characters of a text, rows of a table, size of a number: R2V writes none beyond these."""


@dataclass(frozen=True, kw_only=True)
class SourceStage:
    """A stage behind the results."""

    job: str
    fingerprint: str
    duration: durations.Duration | None
    """None where the project has no record of it, as of an artifact that was made elsewhere or in several attempts."""
    dollars: float | None
    """USD of its LLM at list prices; None where the stage keeps no bill."""
    losses: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All inputs of a report."""

    setup: Setup
    bundle: dict[str, Any]
    tables: dict[str, list[Row]]
    """The rows of every CSV file, by its name."""
    sha256: dict[str, str]
    """The hash of every file behind a figure, by its path in the results folder."""
    stages: tuple[SourceStage, ...] = ()
    missing: tuple[str, ...] = field(default=())
    preference: str | None = None
    """The result of preference training, in words; None where the results use none."""
    audit: str
    """The audit of results and ablations: its hash and date, else the command that verifies them."""


def read_sources(results: Path, ablations: Path | None = None, verified: Mapping[Path, str] | None = None) -> Sources:
    """Return all sources that exist. verified: hash and date of each audited folder. Raises InputError where `results`
    is not a finished results folder, or where `ablations` is given and is not one."""
    require_results(results)
    require_small_files(results)
    manager = ResultsManager(results / STRUCTURED)
    names = [name for name in manager.files if name.endswith(".csv")]
    tables = {name: csv_rows(manager.read(name)) for name in names}
    sha256 = {f"{STRUCTURED}/{name}": digest for name, digest in manager.files.items()}
    missing, shown = [], [results]
    setup = read_setup(results)
    _require_names(setup, results / SETUP)
    folder = ablations or ablations_beside(results)
    try:
        of_ablations = ResultsManager(folder / STRUCTURED)
        require_small_files(folder)
        tables[ABLATIONS_FILE] = csv_rows(of_ablations.read(ABLATIONS_FILE))
        sha256[f"ablations: {STRUCTURED}/{ABLATIONS_FILE}"] = of_ablations.files[ABLATIONS_FILE]
        shown.append(folder)
    except InputError as error:
        if ablations is not None:
            raise
        missing.append(f"ablations: {error}")
    try:
        stages = tuple(_stages(results.resolve()))
    except R2VError as error:  # a copy outside its project still has a report
        stages = ()
        missing.append(f"stages behind these results: {error}")
    bundle = manager.bundle()
    for name, rows in {**tables, "eval_bundle.json": bundle}.items():
        _require_moderate(results / STRUCTURED / name, rows)
    return Sources(
        setup=setup,
        bundle=bundle,
        tables=tables,
        sha256=sha256,
        stages=stages,
        missing=tuple(missing),
        preference=_preference(results),
        audit="; ".join(_audit(path, verified or {}) for path in shown),
    )


def ablations_beside(results: Path) -> Path:
    """Return the folder of these results' ablations, of the same name, else of their benchmark's."""
    folder = results.absolute().parent / "ablations"
    own = folder / results.absolute().name
    shared = folder / re.sub("[:/]", ".", read_setup(results).benchmark)
    return own if own.exists() or not shared.exists() else shared


def _audit(folder: Path, verified: Mapping[Path, str]) -> str:
    path = folder.absolute()
    name = "ablations " if path.parent.name == "ablations" else ""
    if folder in verified:
        return f"{name}verified: {verified[folder]}"
    return f"{name}not verified: `r2v verify-results {'/'.join(path.parts[-3 if name else -2 :])}`"


def _require_names(setup: Setup, where: Path) -> None:
    """Raise InputError for a name that could lead out of the folder once a path is made of it."""
    points = [point for methods in setup.frontier.values() for names in methods.values() for point in names]
    planned = [method for methods in setup.frontier.values() for method in methods]
    for name in (*setup.methods, *setup.conditions, *setup.frontier, *planned, *points):
        if not _NAME.fullmatch(name):
            raise InputError(f"{where}: {name!r:.80} is no name of a method, a condition or an operating point")


def _require_moderate(where: Path, value: Any) -> None:
    """Raise InputError for a table, a text or a number beyond any that R2V writes, before it is drawn."""
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (*value, *value.values())
    elif isinstance(value, list):
        parts = value
    if isinstance(value, str | list | Mapping) and len(value) > (_LONGEST if isinstance(value, str) else _MOST):
        raise InputError(f"{where}: holds a text or a table of {len(value)}, allowed: {_LONGEST} signs, {_MOST} rows")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise InputError(f"{where}: holds the number {value!r:.40}, allowed: up to {LARGEST:g}")
    for part in parts:
        _require_moderate(where, part)


def csv_rows(text: str) -> list[Row]:
    """Return the rows of a CSV text."""
    return list(csv.DictReader(io.StringIO(text)))


def _stages(folder: Path) -> Iterator[SourceStage]:
    """Yield the stages behind a result, each after its inputs."""
    if folder.parent.name != ARTIFACTS.name:  # a copy: its record may name any file of this machine
        raise InputError("known only where they were made, in outputs/.artifacts of their project")
    seen: set[Path] = set()

    def behind(output: Path) -> Iterator[SourceStage]:
        job, inputs = attempt_of(output)
        for artifact in inputs.values():
            if artifact.stage and artifact.folder not in seen and (artifact.folder / ATTEMPT).exists():
                seen.add(artifact.folder)
                yield from behind(artifact.folder)
                yield _source_stage(artifact)

    yield from behind(folder)


def _preference(results: Path) -> str | None:
    """Return the result of preference training; None where the results use none. It is read from the results' own
    record of their inputs, so that a copied folder is enough."""
    try:
        summary = json.loads((results / ATTEMPT).read_text())["inputs"]["preference"]["summary"]
        if "enabled" in summary:
            return f"{'nothing to learn from' if summary['enabled'] else 'off'}, so the cloned policy acts"
        if (acceptance := summary.get("acceptance")) is None:
            return "published without a comparison (preference.accept=always)"
        verdict = from_dict(Verdict, acceptance)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, R2VError):  # a stranger's record
        return None
    return f"accepted; {verdict}" if verdict.accepted else f"not accepted, so the cloned policy acts; {verdict}"


def _source_stage(artifact: Artifact) -> SourceStage:
    job = artifact.folder.name.rpartition("-")[0]
    root = artifact.folder.parents[len(ARTIFACTS.parts)]
    matching = [record for record in durations.recorded(root, job) if record.fingerprint == artifact.fingerprint]
    return SourceStage(
        job=job,
        fingerprint=artifact.fingerprint,
        duration=matching[0] if matching else None,
        dollars=artifact.summary.get("total_cost_usd"),
        losses=tuple(_losses(artifact.folder, job)),
    )


def _losses(folder: Path, job: str) -> list[dict[str, Any]]:
    if job not in _LOSSES:
        return []
    name, key = _LOSSES[job]
    try:
        rows = json.loads((folder / name).read_text())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [row for row in rows if isinstance(row, dict) and {"step", "loss"} <= set(row)]
