"""Artifact: the result of a stage, a folder named by its fingerprint and finished by its `artifact.json`.

    key = fingerprint("train_policy.bc", 1, sections, {"trajectories": trajectories})
    with build(places.artifacts, "bc", key, ...) as work:      # under a lease; resumes a folder left unfinished
        ... write into work.folder ...
    publish(place_of(config, "bc"), artifact)                  # relative link, switched atomically

The fingerprint hashes everything that decides the content: the stage and its version, the config sections it reads, and
the *content* of its inputs. Equal fingerprints mean equal content: reuse, resume, sweeps and ablations rely on it.

Every read is verified: `find`, `read` and `attempt_of` hash the files and compare them with the manifest, by the one
function `r2v.storage.integrity.verify`. An altered file raises Damaged, which names it; `build` then makes the artifact
again and keeps only its provider journal.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from r2v.config import identity
from r2v.errors import InputError, LeaseConflict
from r2v.storage.artifact_manifest import (
    ARTIFACT_MANIFEST,
    ArtifactManifest,
    Damaged,
    code_identity,
    json_sha256,
    read_artifact_manifest,
    write_artifact_manifest,
    wrong_hashes,
)
from r2v.storage.file_system import steadily
from r2v.storage.files import content_sha256, remove_all_drafts, write_json, write_text
from r2v.storage.integrity import CONFIGURATION, EXTERNAL, Artifact, content_files, set_aside, verify, verify_file
from r2v.storage.lease import lease
from r2v.storage.paths import ARTIFACTS, ROOMS
from r2v.storage.removal import ATTEMPT_MARKER, ATTEMPT_PART, remove_own, require_own

log = logging.getLogger(__name__)

ATTEMPT = ATTEMPT_MARKER.file
OTHER_PLACES = ".places"
"""File of an attempt: paths outside its checkout at which it was published, one per line."""
JOURNAL = ".provider"
"""Folder of an attempt with the journal of paid provider requests; not content, and never removed."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Unfinished artifact: write files into `folder` and figures into `summary`."""

    folder: Path
    fingerprint: str
    inputs: Mapping[str, Artifact]
    root: Path
    """Checkout that holds data/ and outputs/."""
    helping: bool = False
    """True if another process makes the artifact and this one only plays episodes: it writes nothing into `folder`."""
    anew: bool = False
    """True if the artifact was requested although it exists: files outside the folder are made again too."""
    summary: dict[str, Any] = field(default_factory=dict)
    found_played: set[str] = field(default_factory=set)
    """Kinds of episodes that were already played, by an earlier attempt, another stage or a helper."""


def fingerprint(stage: str, version: int, sections: Mapping[str, Any], inputs: Mapping[str, Artifact]) -> str:
    """Return 16 hex digits that identify the content of a stage's artifact."""
    return json_sha256(
        [
            stage,
            version,
            {name: identity(section) for name, section in sections.items()},
            {name: artifact.data_sha256 for name, artifact in inputs.items()},
        ]
    )[:16]


def read(folder: Path) -> Artifact:
    """Return the finished artifact in a folder, every file hashed. Raise InputError if it is absent or unfinished,
    Damaged if a file differs from the manifest."""
    manifest = read_artifact_manifest(folder)
    artifact = Artifact(
        folder=folder,
        stage=manifest.stage,
        fingerprint=manifest.fingerprint,
        files=manifest.files,
        inputs=manifest.inputs,
        summary=manifest.summary,
    )
    if folder.parent.name == ARTIFACTS.name and not folder.name.endswith(f"-{artifact.fingerprint}"):
        reason = f"its fingerprint is {artifact.fingerprint}, its folder {folder.name}"
        raise Damaged(folder / ARTIFACT_MANIFEST, reason)
    verify(artifact)
    verify_file(folder / CONFIGURATION, manifest.config_sha256)
    return artifact


def look(store: Path, job: str, key: str) -> Artifact | None:
    """Return the finished artifact of this fingerprint, or None if it is not finished. Raise Damaged if a file differs
    from the manifest."""
    folder = store / f"{job}-{key}"
    if not os.path.lexists(folder / ARTIFACT_MANIFEST):
        if os.path.lexists(folder) and not folder.is_dir():
            raise Damaged(folder, "it is no folder of an artifact")
        return None
    artifact = read(folder)
    if artifact.fingerprint != key:
        reason = f"its fingerprint is {artifact.fingerprint}, it lies where {key} belongs"
        raise Damaged(folder / ARTIFACT_MANIFEST, reason)
    return artifact


def find(store: Path, job: str, key: str) -> Artifact | None:
    """Return the finished and undamaged artifact of this fingerprint, else None: a damaged one is logged and made
    again."""
    try:
        return look(store, job, key)
    except Damaged as error:  # a repeated stage costs time, an error here would need the user's hand
        log.warning("artifact damaged, making it again: job=%s error=%s", job, error)
        return None


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
    bases: Mapping[str, str] = MappingProxyType({}),
    again: bool = False,
    mend: bool = False,
) -> Iterator[Work]:
    """Make an artifact under its lease: yield the work, then write the manifest last.

    An unfinished attempt of the same fingerprint is continued in place. A damaged one is made from its journal alone;
    so is a finished one with `mend`, and with `again`, which sets the journal aside too. `bases`: hashes of the base
    models read, by section of the fingerprint. Raise LeaseConflict if another process is making the artifact or has
    just finished it; Damaged, leaving it unfinished, if an input changed meanwhile; InputError if the attempt's folder
    is a link, since foreign files may lie behind it.
    """
    folder = store / f"{job}-{key}"
    if folder.is_symlink() and folder.is_dir():
        raise InputError(
            f"{folder}: is a link, and R2V makes an attempt in a folder of its own; move what it leads to here, or "
            f"remove the link: rm {shlex.quote(str(folder))}"
        )
    with lease(store / f"{job}-{key}.lease"):
        if _finished(store, job, key) and not (again or mend):
            raise LeaseConflict(
                f"{folder} was finished by another process just now; run the same command again to use it"
            )
        if os.path.lexists(folder / ARTIFACT_MANIFEST) or not folder.is_dir():
            clear(folder, forget=again)
        folder.mkdir(parents=True, exist_ok=True)
        remove_all_drafts(folder)
        write_text(folder / CONFIGURATION, config_yaml)
        located = {name: _locate(folder, artifact) for name, artifact in inputs.items()}
        write_json(folder / ATTEMPT, {"job": job, "bases": dict(bases), "inputs": located})
        code = code_identity()
        work = Work(folder=folder, fingerprint=key, inputs=inputs, root=root, anew=again)
        yield work
        for artifact in inputs.values():
            verify(artifact)  # an input may have changed during the hours of the stage
        manifest = ArtifactManifest(
            stage=stage,
            fingerprint=key,
            files=content_files(folder),
            inputs={name: artifact.data_sha256 for name, artifact in inputs.items()},
            summary=work.summary,
            config_sha256=content_sha256(folder / CONFIGURATION),
            code=code,
        )
        write_artifact_manifest(folder, manifest)


def _finished(store: Path, job: str, key: str) -> bool:
    with suppress(Damaged):
        return look(store, job, key) is not None
    return False


def clear(folder: Path, *, forget: bool = False) -> None:
    """Remove an attempt except its journal, which `forget` renames aside; set a file in the folder's place aside.

    The manifest is removed first, so that a kill leaves an unfinished attempt, not half a finished one. Raise NotOurs
    for a link, and for a folder that is not marked as an attempt.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        set_aside(folder)
        return
    if not os.path.lexists(folder):
        return
    require_own(folder, ATTEMPT_MARKER)
    if forget and (folder / JOURNAL).exists():
        (folder / JOURNAL).rename(folder / f"{JOURNAL}-{secrets.token_hex(4)}")
    remove_own(folder / ARTIFACT_MANIFEST, ATTEMPT_PART)
    remove_own(folder, ATTEMPT_MARKER, spare=JOURNAL)


def attempt_of(folder: Path) -> tuple[str, dict[str, Artifact]]:
    """Return the job and the inputs of an attempt, finished or not, so that its folder alone suffices to continue it.
    Raise InputError if the folder is not an attempt or an input has changed since."""
    path = folder / ATTEMPT
    try:
        record = json.loads(steadily(path.read_text))
        inputs = {name: _located(folder, value) for name, value in record["inputs"].items()}
        job = str(record["job"])
        if folder.name.rpartition("-")[0] not in ("", job):
            raise ValueError(f"job {job}")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder}: not an attempt of a stage (no {ATTEMPT}); name a checkpoint below outputs/"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(path, f"it does not say what was begun ({error!r}); run the stage's own command") from None
    return job, {name: _as_begun_with(folder, artifact) for name, artifact in inputs.items()}


def _as_begun_with(folder: Path, begun: Artifact) -> Artifact:
    """Return the current artifact of a recorded input. Raise InputError if its files differ from the record."""
    try:
        verify(begun)
        if begun.stage == EXTERNAL or begun.labels:
            return begun
        now = replace(read(begun.folder), elsewhere=begun.elsewhere)
    except Damaged as error:
        raise InputError(
            f"{error}: not the file that {folder} was begun with; put that one back, or start the "
            "stage afresh with this one"
        ) from None
    if (now.stage, now.fingerprint, now.files) != (begun.stage, begun.fingerprint, begun.files):
        raise Damaged(folder / ATTEMPT, f"it describes {begun.folder} otherwise than the {ARTIFACT_MANIFEST} there")
    return now


def _located(folder: Path, value: Mapping[str, Any]) -> Artifact:
    """Return an input as an attempt's record describes it. Raise ValueError, KeyError, TypeError or AttributeError if
    the record is malformed."""
    elsewhere = value.get("elsewhere", {})
    if wrong := wrong_hashes(value["files"], "files"):
        raise ValueError(wrong)
    return Artifact(
        stage=value["stage"],
        fingerprint=value["fingerprint"],
        files=dict(value["files"]),
        folder=(folder / value["folder"]).resolve(),
        summary=dict(value["summary"]),
        elsewhere={str((folder / path).resolve()): content for path, content in elsewhere.items()},
        labels=value["stage"] != EXTERNAL and {name[:4] for name in value["files"]} == {"run-"},
    )


def external(path: Path) -> Artifact:
    """Return a user's file as an artifact. Raise InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return Artifact(stage=EXTERNAL, fingerprint="", folder=path.parent, files={path.name: content_sha256(path)})


def _locate(folder: Path, artifact: Artifact) -> dict[str, Any]:
    elsewhere = {_relative(path, folder): content for path, content in artifact.elsewhere.items()}
    return {
        "folder": _relative(str(artifact.folder), folder),
        "stage": artifact.stage,
        "fingerprint": artifact.fingerprint,
        "files": artifact.files,
        "summary": artifact.summary,
        **({"elsewhere": elsewhere} if elsewhere else {}),
    }


def _relative(path: str, folder: Path) -> str:
    return os.path.relpath(Path(path).resolve(), folder.resolve())


def publish(link: Path, folder: Path) -> None:
    """Point the relative symbolic `link` at `folder`, atomically. Raise InputError if a real folder is in the way."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link}: is a real folder, not a link of ours; move it away")
    target = os.path.relpath(folder.resolve(), link.parent.resolve())
    # A correct link is not rewritten: users with read access alone can run a finished project.
    if not link.is_symlink() or link.readlink().as_posix() != target:
        fresh = link.with_name(f".{link.name}.link-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)
    _remember(link.absolute(), folder.resolve())


def _remember(link: Path, folder: Path) -> None:
    """Record a link outside the checkout's folders, such as on another disk, for garbage collection."""
    root = folder.parents[len(ARTIFACTS.parts)] if folder.parent.name == ARTIFACTS.name else folder.parent
    if any(link.is_relative_to(root / room) for room in ROOMS):
        return
    links = places_elsewhere(folder)
    if link not in links:
        write_text(folder / OTHER_PLACES, "".join(f"{path}\n" for path in (*links, link)))


def places_elsewhere(folder: Path) -> list[Path]:
    """Return the paths outside its checkout at which an attempt was ever published."""
    with suppress(OSError, ValueError):
        return [Path(line) for line in (folder / OTHER_PLACES).read_text().splitlines() if line]
    return []
