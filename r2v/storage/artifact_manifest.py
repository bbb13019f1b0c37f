"""Artifact manifest: `artifact.json`, written last, with the hashes of an artifact's files and inputs.

    {"format": 3, "stage": ..., "fingerprint": ..., "files": {name: SHA-256}, "inputs": {name: SHA-256},
     "summary": {...}, "config_sha256": SHA-256 of config.yaml, "code": identity, "sha256": SHA-256 of all this}

The reader is strict: every leaf has its type, every hash its digits, and no name leads out of the folder. The last hash
detects damage, not forgery: anyone can compute it again. Fingerprints contain a stage's version, not the identity of
the code, so an edit that changes no result repeats no stage. Code submitted to Slurm runs from a snapshot, where
`snapshot.json` next to the package records the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from r2v.constraints import shown
from r2v.errors import InputError, MissingInput
from r2v.storage.file_system import steadily
from r2v.storage.files import write_json
from r2v.storage.removal import SNAPSHOT_MARKER

ARTIFACT_MANIFEST = "artifact.json"
ARTIFACT_FORMAT = 3
_KEYS = {"format", "stage", "fingerprint", "files", "inputs", "summary", "config_sha256", "code", "sha256"}
_STAGE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CODE = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Damaged(InputError):
    """A file of an artifact, `path`, differs from its record."""

    def __init__(self, path: Path, how: str) -> None:
        super().__init__(f"{path} is damaged: {how}")
        self.path = path


@dataclass(frozen=True, kw_only=True)
class ArtifactManifest:
    """Record of a finished artifact. Hashes are hex SHA-256: `files` by relative name, `inputs` by job over all content
    of each, `config_sha256` of the resolved configuration."""

    stage: str
    fingerprint: str
    files: dict[str, str]
    inputs: dict[str, str]
    summary: dict[str, Any] = field(default_factory=dict)
    config_sha256: str
    code: str | None = None
    """Identity of the code that made the artifact; not part of the fingerprint."""


def json_sha256(value: Any) -> str:
    """Return the hex SHA-256 of a JSON value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def hashed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a hash of itself, as `r2v.storage.integrity.read_hashed` checks it."""
    record = json.loads(json.dumps(record, allow_nan=False))  # hash the value as it will be read: lists for tuples
    return {**record, "sha256": json_sha256(record)}


def write_artifact_manifest(folder: Path, manifest: ArtifactManifest) -> None:
    """Write the manifest into the folder atomically."""
    write_json(folder / ARTIFACT_MANIFEST, hashed({"format": ARTIFACT_FORMAT, **vars(manifest)}))


def read_artifact_manifest(folder: Path) -> ArtifactManifest:
    """Return the manifest of a folder. Raise MissingInput if it is absent, Damaged if it is not a valid manifest."""
    path = folder / ARTIFACT_MANIFEST
    try:
        record = json.loads(steadily(lambda: path.read_text(encoding="utf-8")), parse_constant=_no_constant)
    except (FileNotFoundError, NotADirectoryError):
        state = "unfinished" if folder.is_dir() else "missing"
        raise MissingInput(f"{folder}: {state} (no {ARTIFACT_MANIFEST})") from None
    except OSError as error:
        raise Damaged(path, f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"it is no JSON ({error})") from None
    if (wrong := _wrong(record)) is not None:
        raise Damaged(path, wrong)
    return ArtifactManifest(**{name: value for name, value in record.items() if name not in ("format", "sha256")})


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _wrong(record: Any) -> str | None:
    """Return the first defect of a manifest, or None."""
    if not isinstance(record, dict):
        return f"it holds a {type(record).__name__}, not an artifact's record"
    if set(record) != _KEYS:
        return f"its keys are {', '.join(sorted(record)) or 'none'}"
    if not (isinstance(record["stage"], str) and _STAGE.fullmatch(record["stage"])):
        return f"its stage is {record['stage']!r}, not module:name"
    if not (isinstance(record["fingerprint"], str) and record["fingerprint"].isalnum()):
        return f"its fingerprint is {record['fingerprint']!r}"
    if not isinstance(record["summary"], dict):
        return f"its summary is a {type(record['summary']).__name__}, not an object"
    if type(record["format"]) is not int or record["format"] != ARTIFACT_FORMAT:
        return f"its format is {record['format']!r}, this R2V reads {ARTIFACT_FORMAT}"
    code = record["code"]
    if not (code is None or isinstance(code, str) and _CODE.fullmatch(code)):
        return f"its code is {code!r}"
    hashes = {**record, "config_sha256": {"config.yaml": record["config_sha256"]}}
    for name in ("files", "inputs", "config_sha256"):
        if wrong := wrong_hashes(hashes[name], name):
            return wrong
    content = json_sha256({name: value for name, value in record.items() if name != "sha256"})
    return None if record["sha256"] == content else f"its content is {content[:12]}, it says {record['sha256']!s:.12}"


def wrong_hashes(hashes: Any, name: str) -> str | None:
    """Return the first defect of a mapping of relative names to hashes, or None."""
    if not isinstance(hashes, dict):
        return f"its {name} are a {type(hashes).__name__}, not an object"
    for file, value in hashes.items():
        if not relative(file):
            return f"its {name} name {file!r}, which is no path below the folder"
        if not (isinstance(value, str) and _SHA256.fullmatch(value)):
            return f"its {name} say {value!r} of {file}, which is no SHA-256"
    return None


def relative(name: str) -> bool:
    """True if a name is a path below its folder in normal form."""
    path = PurePosixPath(name)
    clean = name.isprintable() and "\\" not in name
    return clean and bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name


OWN_PACKAGE = Path(__file__).resolve().parents[1]
PROJECT_FILES = "slurm/site/project"
"""Folder of a wheel's package with the files that `r2v init` copies; setup.py puts them there."""
SNAPSHOT_RECORD = SNAPSHOT_MARKER.file
"""Record of a snapshot."""


@cache
def code_identity() -> str:
    """Return 12 hex digits over R2V's Python, YAML and TOML files, read once per process. A wheel and the checkout it
    was built from have the same."""
    content, copied = hashlib.sha256(), OWN_PACKAGE / PROJECT_FILES
    sources = sorted(path for kind in ("py", "yaml", "toml") for path in OWN_PACKAGE.rglob(f"*.{kind}"))
    for path in (path for path in sources if not path.is_relative_to(copied)):
        content.update(f"{path.relative_to(OWN_PACKAGE).as_posix()}\0".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:12]


@cache
def own_snapshot() -> Mapping[str, Any]:
    """Return the record of the snapshot that this process runs from, or an empty mapping."""
    try:
        record = json.loads((OWN_PACKAGE.parent / SNAPSHOT_RECORD).read_text())
    except (OSError, ValueError):  # a checkout or an installed wheel
        return {}
    return record if isinstance(record, dict) else {}


@cache
def git_commit() -> str | None:
    """Return the commit that R2V runs from, or None outside a checkout and a snapshot of one."""
    if own_snapshot():
        commit = own_snapshot().get("commit")
        return str(commit) if commit else None
    if not (OWN_PACKAGE.parent / ".git").exists():
        return None
    command = ["git", "-C", str(OWN_PACKAGE.parent), "rev-parse", "HEAD"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


_MOST_FILES = 100_000
"""Entries of a folder: results and bundles have a few hundred."""


def plain_files(folder: Path) -> dict[str, int]:
    """Relative name -> size in bytes of every file below the folder, and 0 for every empty folder, named with a slash
    at its end. No link is followed. Raise Damaged for a link, a pipe or a device, InputError for more than 100,000
    files."""
    sizes: dict[str, int] = {}
    for name, status in _walk(folder):
        if stat.S_ISREG(status.st_mode):
            sizes[name] = status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            raise Damaged(folder / shown(name), "it is a link, a pipe or a device; R2V puts none there")
        elif not any(os.scandir(folder / name)):
            sizes[f"{name}/"] = 0
        if len(sizes) > _MOST_FILES:
            raise InputError(f"{folder}: holds more than {_MOST_FILES} files; results and bundles have a few hundred")
    return sizes


def _walk(folder: Path, stem: str = "") -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        status = entry.stat(follow_symlinks=False)
        yield stem + entry.name, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(folder / entry.name, f"{stem}{entry.name}/")
