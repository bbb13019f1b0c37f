"""Artifact: the result of a stage, a folder named by its fingerprint that is finished once `artifact.json` is in it.

    key = fingerprint("train_policy.bc", 1, sections, {"trajectories": trajectories})
    with build(places.artifacts, "bc", key, ...) as work:      # under a lease; resumes a folder left unfinished
        ... write into work.folder ...
    publish(place_of(config, "bc"), artifact)                  # relative link, switched atomically

The fingerprint hashes what decides the content: the stage and its version, the config sections it reads, and
the *content* of its inputs. Same fingerprint, same content: reuse, resume, sweeps and ablations follow.

What is read is what was made: every door to a finished artifact (`find`, `read`, `attempt_of`) hashes its files and
compares them with the manifest, by the one function `r2v.storage.integrity.verify`. What was altered raises Damaged,
which names the file; `build` then makes the artifact anew, from nothing but what a provider was paid for.
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
"""In an attempt: the places outside its checkout at which it was published, one a line."""
JOURNAL = ".provider"
"""Folder in an attempt that remembers what a provider was asked and paid; not content, and never removed."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """An artifact in the making: write into `folder`, put figures into `summary`."""

    folder: Path
    fingerprint: str
    inputs: Mapping[str, Artifact]
    root: Path
    """The checkout whose data/ and outputs/ these are."""
    helping: bool = False
    """Whether another process makes the artifact, and this one plays for it: it writes nothing into `folder`."""
    anew: bool = False
    """Whether it was asked for although it is there: what lies outside the folder is then made a second time too."""
    summary: dict[str, Any] = field(default_factory=dict)
    found_played: set[str] = field(default_factory=set)
    """Of what plays were found played, by an earlier attempt, another stage or a helper."""


def fingerprint(stage: str, version: int, sections: Mapping[str, Any], inputs: Mapping[str, Artifact]) -> str:
    """16 hex digits that stand for the stage's content."""
    return json_sha256(
        [
            stage,
            version,
            {name: identity(section) for name, section in sections.items()},
            {name: artifact.data_sha256 for name, artifact in inputs.items()},
        ]
    )[:16]


def read(folder: Path) -> Artifact:
    """The finished artifact in a folder, every file of it hashed. Raises InputError where it is absent or unfinished,
    Damaged where it is not what was made."""
    manifest = read_artifact_manifest(folder)
    made = Artifact(
        folder=folder,
        stage=manifest.stage,
        fingerprint=manifest.fingerprint,
        files=manifest.files,
        inputs=manifest.inputs,
        summary=manifest.summary,
    )
    if folder.parent.name == ARTIFACTS.name and not folder.name.endswith(f"-{made.fingerprint}"):
        raise Damaged(folder / ARTIFACT_MANIFEST, f"its fingerprint is {made.fingerprint}, its folder {folder.name}")
    verify(made)
    verify_file(folder / CONFIGURATION, manifest.config_sha256)
    return made


def look(store: Path, job: str, key: str) -> Artifact | None:
    """The finished artifact of this fingerprint; None where there is none yet. Raises Damaged where it is not what was
    made."""
    folder = store / f"{job}-{key}"
    if not os.path.lexists(folder / ARTIFACT_MANIFEST):
        if os.path.lexists(folder) and not folder.is_dir():
            raise Damaged(folder, "it is no folder of an artifact")
        return None
    made = read(folder)
    if made.fingerprint != key:
        raise Damaged(folder / ARTIFACT_MANIFEST, f"its fingerprint is {made.fingerprint}, it lies where {key} belongs")
    return made


def find(store: Path, job: str, key: str) -> Artifact | None:
    """The finished artifact of this fingerprint, if there is one and all its files are what was made; a damaged one is
    named by a line and is not found, so that it is made again."""
    try:
        return look(store, job, key)
    except Damaged as error:
        log.warning("%-16s %s; it is made again", job, error)
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
    """Make an artifact: yields the work, then writes its manifest last. `bases`: hashes of the models that are read, by
    section of the fingerprint. An earlier unfinished attempt of the
    same fingerprint is continued in place. A damaged one is made from nothing but its journal; so is a finished one
    with `mend`, and with `again`, where the journal is set aside too. Raises LeaseConflict where another process is
    making it, or has just made it; Damaged where an input changed meanwhile, and then nothing is finished; InputError
    where the attempt's folder is a link, behind which anybody's files may lie."""
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
            verify(artifact)  # what was read is what is recorded, also where the stage took hours
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
    """Remove an attempt but for what a provider was paid for, which with `forget` is set aside under a name of its own;
    what is in the way and no folder is set aside too. The manifest goes first: a kill leaves an unfinished attempt, not
    half a finished one. Raises NotOurs for a link, and for a folder that nothing proves to be an attempt."""
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
    """The job and the inputs of an attempt, finished or not, so that it can be continued from its folder alone.
    Raises InputError where the folder is no attempt of ours or an input has changed since."""
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
    """The input of an attempt as it lies there now. Raises InputError where it is not what the attempt recorded."""
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
    """An input as an attempt's record describes it. Raises what reading anything else raises: ValueError, KeyError,
    TypeError, AttributeError."""
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
    """A file of the user's own in the place of an artifact. Raises InputError where it is missing."""
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


def publish(place: Path, folder: Path) -> None:
    """Point `place` at `folder` by a relative link, atomically. A real folder in the way is refused. A link that leads
    there is left as it is: who may only read a finished project can run it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists() and not place.is_symlink():
        raise InputError(f"{place}: is a real folder, not a link of ours; move it away")
    target = os.path.relpath(folder.resolve(), place.parent.resolve())
    if not place.is_symlink() or place.readlink().as_posix() != target:
        fresh = place.with_name(f".{place.name}.link-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(place)
    _remember(place.absolute(), folder.resolve())


def _remember(place: Path, folder: Path) -> None:
    """Write a place down that lies where nobody looks for links, such as another disk: garbage collection asks it."""
    root = folder.parents[len(ARTIFACTS.parts)] if folder.parent.name == ARTIFACTS.name else folder.parent
    if any(place.is_relative_to(root / room) for room in ROOMS):
        return
    known = places_elsewhere(folder)
    if place not in known:
        write_text(folder / OTHER_PLACES, "".join(f"{path}\n" for path in (*known, place)))


def places_elsewhere(folder: Path) -> list[Path]:
    """Where an attempt was published outside the folders of its checkout, whether or not it still is."""
    with suppress(OSError, ValueError):
        return [Path(line) for line in (folder / OTHER_PLACES).read_text().splitlines() if line]
    return []
