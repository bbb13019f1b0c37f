"""Artifact manifest: `artifact.json`, written last, which says of what an artifact consists and what it was made of.

    {"format": 3, "stage": ..., "fingerprint": ..., "files": {name: SHA-256}, "inputs": {name: SHA-256},
     "summary": {...}, "config_sha256": SHA-256 of config.yaml, "code": identity, "sha256": SHA-256 of all this}

Whatever reads an artifact reads it here, strictly: every leaf has its type, every hash its digits, and no name leads
out of the folder. The last hash finds damage, not lies: who alters the file on purpose can compute it again. Manifests
of R2V 0.1 and 0.2 have neither format nor the last two hashes, those of format 2 no identity of the code that made the
artifact (`r2v.storage.code_identity`); all are still read.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from r2v.errors import InputError, MissingInput
from r2v.storage.files import write_json

ARTIFACT_MANIFEST = "artifact.json"
ARTIFACT_FORMAT = 3
_FIRST = {"stage", "fingerprint", "files", "inputs", "summary"}
_SECOND = _FIRST | {"format", "config_sha256", "sha256"}
_KEYS = {2: _SECOND, 3: _SECOND | {"code"}}
"""Of each format that is read."""
_STAGE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CODE = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Damaged(InputError):
    """What lies in an artifact is not what was made: `path` is the file that differs."""

    def __init__(self, path: Path, how: str) -> None:
        super().__init__(f"{path} is damaged: {how}")
        self.path = path


@dataclass(frozen=True, kw_only=True)
class ArtifactManifest:
    """The record of a finished artifact. Hashes are hex SHA-256: `files` of content by relative name, `inputs` of all
    content of each input by its job, `config_sha256` of the resolved configuration (None in earlier formats)."""

    stage: str
    fingerprint: str
    files: dict[str, str]
    inputs: dict[str, str]
    summary: dict[str, Any] = field(default_factory=dict)
    config_sha256: str | None = None
    code: str | None = None
    """The identity of the code that made it; None in earlier formats. No part of the fingerprint."""


def json_sha256(value: Any) -> str:
    """Hex SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_artifact_manifest(folder: Path, manifest: ArtifactManifest) -> None:
    """Put the manifest into the folder, whole or not at all."""
    record = {
        "format": ARTIFACT_FORMAT,
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "files": manifest.files,
        "inputs": manifest.inputs,
        "summary": manifest.summary,
        "config_sha256": manifest.config_sha256,
        "code": manifest.code,
    }
    record = json.loads(json.dumps(record, allow_nan=False))  # keys that are no strings become what will be read
    write_json(folder / ARTIFACT_MANIFEST, {**record, "sha256": json_sha256(record)})


def read_artifact_manifest(folder: Path) -> ArtifactManifest:
    """Return the manifest in a folder. Raise MissingInput where there is none, Damaged where it is something else."""
    path = folder / ARTIFACT_MANIFEST
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
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
    """The first thing that no manifest has; None: it is one."""
    if not isinstance(record, dict):
        return f"it holds a {type(record).__name__}, not an artifact's record"
    if set(record) not in (_FIRST, *_KEYS.values()):
        return f"its keys are {', '.join(sorted(record)) or 'none'}"
    if not (isinstance(record["stage"], str) and _STAGE.fullmatch(record["stage"])):
        return f"its stage is {record['stage']!r}, not module:name"
    if not (isinstance(record["fingerprint"], str) and record["fingerprint"].isalnum()):
        return f"its fingerprint is {record['fingerprint']!r}"
    if not isinstance(record["summary"], dict):
        return f"its summary is a {type(record['summary']).__name__}, not an object"
    wrong = wrong_hashes(record["files"], "files") or wrong_hashes(record["inputs"], "inputs")
    return wrong or (_wrong_second(record) if "format" in record else None)


def _wrong_second(record: dict[str, Any]) -> str | None:
    """What the later formats have beside the first."""
    if type(record["format"]) is not int or set(record) != _KEYS.get(record["format"]):
        return f"its format is {record['format']!r}, this R2V reads {ARTIFACT_FORMAT}"
    code = record.get("code")
    if not (code is None or isinstance(code, str) and _CODE.fullmatch(code)):
        return f"its code is {code!r}"
    if wrong := wrong_hashes({"config.yaml": record["config_sha256"]}, "config_sha256"):
        return wrong
    content = json_sha256({name: value for name, value in record.items() if name != "sha256"})
    return None if record["sha256"] == content else f"its content is {content[:12]}, it says {record['sha256']!s:.12}"


def wrong_hashes(hashes: Any, name: str) -> str | None:
    """What is wrong with a mapping of relative names to hashes; None: nothing."""
    if not isinstance(hashes, dict):
        return f"its {name} are a {type(hashes).__name__}, not an object"
    for file, value in hashes.items():
        if not relative(file):
            return f"its {name} name {file!r}, which is no path below the folder"
        if not (isinstance(value, str) and _SHA256.fullmatch(value)):
            return f"its {name} say {value!r} of {file}, which is no SHA-256"
    return None


def relative(name: str) -> bool:
    """Whether a name leads to something below its folder, spelled in the one way that R2V spells it."""
    path = PurePosixPath(name)
    clean = name.isprintable() and "\\" not in name
    return clean and bool(path.parts) and not path.is_absolute() and ".." not in path.parts and str(path) == name
