"""Artifact: the result of a stage, a folder named by its fingerprint that is finished once `artifact.json` is in it.

    key = fingerprint("train_policy.bc", 1, sections, {"trajectories": trajectories})
    with build(places.artifacts, "bc", key, ...) as work:      # under a lease; resumes a folder left unfinished
        ... write into work.folder ...
    publish(place_of(config, "bc"), artifact)                  # relative link, switched atomically

The fingerprint hashes what decides the content: the stage and its version, the config sections it reads, and
the *content* of its inputs. Same fingerprint, same content: reuse, resume, sweeps and ablations follow.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.config import identity
from r2v.errors import InputError, LeaseConflict
from r2v.storage.files import content_sha256, write_json, write_text
from r2v.storage.lease import lease

ARTIFACT_MANIFEST = "artifact.json"
ATTEMPT = "attempt.meta.json"
EXTERNAL = "external"
JOURNAL = ".provider"
"""Folder in an attempt that remembers what a provider was asked and paid; not content."""
_NOT_CONTENT = ("checkpoint-", "tmp", ".")
_NOT_CONTENT_SUFFIXES = (".meta.json", ".lease", ".quarantine")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A finished result. `files` maps each content file (relative path) to its SHA-256."""

    stage: str
    fingerprint: str
    folder: Path
    files: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def data_sha256(self) -> str:
        """One hash over all content: equal on any machine that made the same thing."""
        return _sha(sorted(self.files.items()))

    def file(self, name: str) -> Path:
        """The path of one content file; a file of the user's own stands in for any name. Raises InputError where
        it is gone or was never made."""
        path = self.folder / (next(iter(self.files)) if self.stage == EXTERNAL else name)
        if not path.exists():
            raise InputError(f"{path}: missing from the artifact of {self.stage}; run that stage again")
        return path


@dataclass(frozen=True, kw_only=True)
class Work:
    """An artifact in the making: write into `folder`, put figures into `summary`."""

    folder: Path
    fingerprint: str
    inputs: Mapping[str, Artifact]
    root: Path
    """The checkout whose data/ and outputs/ these are."""
    summary: dict[str, Any] = field(default_factory=dict)


def _sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def fingerprint(stage: str, version: int, sections: Mapping[str, Any], inputs: Mapping[str, Artifact]) -> str:
    """16 hex digits that stand for the stage's content."""
    return _sha(
        [
            stage,
            version,
            {name: identity(section) for name, section in sections.items()},
            {name: artifact.data_sha256 for name, artifact in inputs.items()},
        ]
    )[:16]


def content_files(folder: Path) -> dict[str, str]:
    """The content files below a folder and their hashes; checkpoints and metadata are not content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or path.name in (ARTIFACT_MANIFEST, "config.yaml"):
            continue
        if any(p.startswith(_NOT_CONTENT) or p.endswith(_NOT_CONTENT_SUFFIXES) for p in relative.parts):
            continue
        found[relative.as_posix()] = content_sha256(path)
    return found


def read(folder: Path) -> Artifact:
    """The finished artifact in a folder. Raises InputError where it is absent, unfinished or damaged."""
    try:
        record = json.loads((folder / ARTIFACT_MANIFEST).read_text())
        return Artifact(
            folder=folder,
            stage=record["stage"],
            fingerprint=record["fingerprint"],
            files=record["files"],
            inputs=record["inputs"],
            summary=record["summary"],
        )
    except (FileNotFoundError, NotADirectoryError):
        state = "unfinished" if folder.is_dir() else "missing"
        raise InputError(f"{folder}: {state} (no {ARTIFACT_MANIFEST}); run the stage that makes it first") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / ARTIFACT_MANIFEST}: damaged ({error}); delete it and run the stage again"
        ) from None


def find(store: Path, job: str, key: str) -> Artifact | None:
    """The finished artifact of this fingerprint, if there is one with all its files in place."""
    folder = store / f"{job}-{key}"
    if not (folder / ARTIFACT_MANIFEST).exists():
        return None
    artifact = read(folder)
    return artifact if all((folder / name).exists() for name in artifact.files) else None


@contextmanager
def build(
    store: Path,
    job: str,
    key: str,
    stage: str,
    config_yaml: str,
    inputs: Mapping[str, Artifact],
    root: Path,
    *,
    again: bool = False,
) -> Iterator[Work]:
    """Make an artifact: yields the work, then writes its manifest last. An earlier unfinished attempt of the
    same fingerprint is continued in place; with `again` a finished one is made anew from nothing. Raises LeaseConflict
    where another process is making it, or has just made it."""
    folder = store / f"{job}-{key}"
    with lease(store / f"{job}-{key}.lease"):
        if again and (folder / ARTIFACT_MANIFEST).exists():
            shutil.rmtree(folder)
        if find(store, job, key) is not None:
            raise LeaseConflict(
                f"{folder} was finished by another process just now; run the same command again to use it"
            )
        (folder / ARTIFACT_MANIFEST).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", config_yaml)
        write_json(folder / ATTEMPT, {"job": job, "inputs": {n: _locate(folder, a) for n, a in inputs.items()}})
        work = Work(folder=folder, fingerprint=key, inputs=inputs, root=root)
        yield work
        write_json(
            folder / ARTIFACT_MANIFEST,
            {
                "stage": stage,
                "fingerprint": key,
                "files": content_files(folder),
                "inputs": {name: artifact.data_sha256 for name, artifact in inputs.items()},
                "summary": work.summary,
            },
        )


def attempt_of(folder: Path) -> tuple[str, dict[str, Artifact]]:
    """The job and the inputs of an attempt, finished or not, so that it can be continued from its folder alone.
    Raises InputError where the folder is no attempt of ours or an input has changed since."""
    try:
        record = json.loads((folder / ATTEMPT).read_text())
    except (OSError, json.JSONDecodeError):
        raise InputError(
            f"{folder}: not an attempt of a stage (no {ATTEMPT}); name a checkpoint below outputs/"
        ) from None
    inputs = {
        name: Artifact(
            stage=value["stage"],
            fingerprint=value["fingerprint"],
            files=value["files"],
            folder=(folder / value["folder"]).resolve(),
            summary=value["summary"],
        )
        for name, value in record["inputs"].items()
    }
    for one in inputs.values():
        for name, recorded in one.files.items() if one.stage == EXTERNAL else ():
            path = one.folder / name
            if not path.is_file() or content_sha256(path) != recorded:
                raise InputError(
                    f"{path}: not the file that {folder} was begun with; put that one back, or start the "
                    "stage afresh with this one"
                )
    return record["job"], inputs


def external(path: Path) -> Artifact:
    """A file of the user's own in the place of an artifact. Raises InputError where it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return Artifact(stage=EXTERNAL, fingerprint="", folder=path.parent, files={path.name: content_sha256(path)})


def _locate(folder: Path, artifact: Artifact) -> dict[str, Any]:
    return {
        "folder": os.path.relpath(artifact.folder.resolve(), folder.resolve()),
        "stage": artifact.stage,
        "fingerprint": artifact.fingerprint,
        "files": artifact.files,
        "summary": artifact.summary,
    }


def publish(place: Path, folder: Path) -> None:
    """Point `place` at `folder` by a relative link, atomically. A real folder in the way is refused."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists() and not place.is_symlink():
        raise InputError(f"{place}: is a real folder, not a link of ours; move it away")
    fresh = place.with_name(f".{place.name}.link-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(folder.resolve(), place.parent.resolve()))
    fresh.replace(place)
