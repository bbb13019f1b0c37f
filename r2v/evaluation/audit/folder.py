"""The files of a results folder, held to their manifest: which there are, which there should be, and their hashes.

Nothing is opened by a name that a file gives, and a file larger than any that R2V writes is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from r2v.config.engines import EngineRecord
from r2v.data.schema import from_dict, parse_json
from r2v.errors import InputError, R2VError
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.settings import EVALUATE_STAGE
from r2v.storage.artifact import ATTEMPT
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, plain_files, read_artifact_manifest
from r2v.storage.compression import LINES, lines_of
from r2v.storage.files import content_sha256
from r2v.storage.integrity import CONFIGURATION

T = TypeVar("T")

LARGEST_JSON = 32 << 20
"""Bytes of the largest file that is read whole: setup.json holds two numbers for each scored step."""
LARGEST_LINES = 4 << 30
"""Bytes of the largest file of lines."""
PROVIDER_FILES = re.compile(
    r"\.provider(-[0-9a-f]{8})?/(\w+/)?(journal\.jsonl(\.witness)?|progress\.json|inputs/([\w.-]+\.jsonl)?)"
)
"""Journals of paid requests, which R2V keeps in the folder of every attempt, finished or not."""
BESIDE = (ARTIFACT_MANIFEST, ATTEMPT, CONFIGURATION)
"""Files that describe the others and are not content themselves."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSummary:
    """The summary of an evaluation in artifact.json."""

    n_episodes: int
    thresholds: dict[str, float]
    n_env_faults: int = 0
    fewer_than_asked: dict[str, dict[str, int]] | None = None
    """Key -> how many tasks were asked for, and how many there were to play."""
    engine: EngineRecord | None = None


def require_small_files(results: Path) -> set[str]:
    """The names of `plain_files`. Raises InputError as that does, and for a file larger than R2V writes among results;
    nothing is opened before."""
    sizes = plain_files(results)
    for name, size in sizes.items():
        if size > (most := LARGEST_LINES if name.endswith(LINES) else LARGEST_JSON):
            raise InputError(f"{results / name}: {size} bytes; R2V writes no such file above {most}")
    return set(sizes)


def read_json(path: Path, cls: type[Any]) -> Any:
    """The JSON of a small file as a `cls`. Raises InputError in one line for anything else."""
    try:
        return from_dict(cls, parse_json(path.read_bytes()))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; it is written by r2v evaluate") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


def check_files(
    results: Path,
    there: set[str],
    expected: set[str],
    content: Mapping[str, str],
    findings: Findings,
    stage: str = EVALUATE_STAGE,
) -> None:
    """Hold the folder to artifact.json and to the `expected` files, in both directions; `content`: the hashes of its
    content files; `stage`: the one that made it."""
    findings.extend("missing file", sorted((expected | set(BESIDE)) - there))
    findings.extend(
        "stray file", (f"{name} is no part of this evaluation" for name in sorted(there - expected - set(BESIDE)))
    )
    if ARTIFACT_MANIFEST in there:
        _check_manifest(results, content, stage, findings)


def _check_manifest(results: Path, hashes: Mapping[str, str], stage: str, findings: Findings) -> None:
    try:
        manifest = read_artifact_manifest(results)
    except InputError as error:
        findings.add(ARTIFACT_MANIFEST, str(error))
        return
    if manifest.stage != stage:
        findings.add(ARTIFACT_MANIFEST, f"stage is {manifest.stage}, of such a folder it is {stage}")
    recorded = {**manifest.files, CONFIGURATION: manifest.config_sha256}
    there = {**hashes, CONFIGURATION: content_sha256(results / CONFIGURATION)}
    for name in sorted(there.keys() | recorded.keys()):
        if (own := there.get(name, "missing")) != (listed := recorded.get(name, "not listed")):
            findings.add("altered file", f"{name} is {own[:16]}, by {ARTIFACT_MANIFEST} {listed[:16]}")


def records_of(path: Path, parse: Callable[[str], T], findings: Findings) -> Iterator[T]:
    """Yield the records of a file of JSON lines, packed or not, up to the first malformed line. That line is a finding,
    and so are a missing file and a line that R2V would have written otherwise: a key that occurs twice, or another
    spelling of a value, could mean one thing to one reader and another to the next."""
    name = "/".join(path.parts[-3:])
    lines = lines_of(path)
    for number in count(1):
        try:
            line = next(lines, None)
        except OSError as error:
            findings.add("unreadable file", f"{name}: {error.strerror}")
            return
        except InputError as error:
            findings.add("unreadable file", str(error).replace(str(path), name))
            return
        if line is None:
            return
        try:
            text = line.decode()
            record = parse(text)
            if _as_written(text) != text:
                findings.add("spelling", f"{name}:{number} is not the line that R2V writes for this record")
        except (ValueError, R2VError) as error:
            findings.add("malformed line", f"{name}:{number}: {error}")
            return
        yield record


def _as_written(line: str) -> str:
    return json.dumps(parse_json(line), ensure_ascii=False, separators=(",", ":")) + "\n"
