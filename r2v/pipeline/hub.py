"""Transfer through the Hugging Face hub: `r2v push` and `r2v pull`.

    push(parcel_of("outputs/bundles/desk"), "me/desk")     # a bundle becomes a model repository
    pull("datasets/me/episodes")                            # a run's trajectories come into data/runs

A bundle is a model, a run a data set, a report a static space, which the hub shows as a page. Before anything is sent,
every hash is checked and every file searched for secrets. A pull takes the files that a manifest names (`bundle.json`,
or `r2v_files.json` of a run or a report) and nothing else, imports no code, and renames the folder to its final name
once every hash holds. HF_ENDPOINT names another hub, HF_TOKEN the token.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import write
from r2v.constraints import shown
from r2v.data.manifest import RUN_ID, RUN_MANIFEST, read_manifest
from r2v.data.registry import DataRegistry
from r2v.data.run import verify_run
from r2v.errors import DISK_REFUSES, EnvironmentFault, InputError, R2VError, UsageError
from r2v.redaction import secret_in
from r2v.report.build import PAGE
from r2v.report.marker import REPORT_MARKER, read_marker
from r2v.serve.bundle.manifest import BUNDLE_MANIFEST, read_bundle
from r2v.storage.artifact_manifest import Damaged, relative, wrong_hashes
from r2v.storage.compression import LINES, lines_of
from r2v.storage.files import content_sha256, writing
from r2v.storage.integrity import hashed, read_hashed, verify_file
from r2v.storage.removal import OWN, Marker, is_own, make_own, remove_own

FILE_LIST = "r2v_files.json"
"""Manifest of a pushed run or report: the hash of every file."""
_KINDS = {
    "": ("bundle", "model", "outputs/bundles"),
    "datasets/": ("run", "dataset", "data/runs"),
    "spaces/": ("report", "space", "results/report"),
}
"""Prefix of a repository's full name -> kind of its content, its type on the hub, and the parent folder of a pull."""
_REPOSITORY = re.compile(r"(datasets/|spaces/|)(\w[\w.-]{0,95}/\w[\w.-]{0,95})", re.ASCII)
_DRAFT_MARKER = Marker(kind="draft of a download")
_CHUNK, _OVERLAP = 1 << 20, 1 << 12
_SHARD = re.compile(rb'r2vShard\(\d+,"([A-Za-z0-9+/=]*)"\);\s*')


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Files to push, every hash checked. `files`: relative name -> hash of its content."""

    kind: str
    folder: Path
    files: dict[str, str]
    card: str
    """Text of the README.md that is pushed with it; "" of a bundle, which has its own."""

    def repository(self, name: str) -> str:
        """Return the full name of this parcel's repository, as `pull` takes it. Raise UsageError for another name."""
        prefix = next(prefix for prefix, (kind, _, _) in _KINDS.items() if kind == self.kind)
        match = _REPOSITORY.fullmatch(name)
        if match is None or match[1] not in ("", prefix):
            raise UsageError(f"{shown(name)}: a {self.kind} is pushed to {prefix}OWNER/NAME")
        return prefix + match[2]


def parcel_of(source: str) -> Parcel:
    """Return the bundle, run or report in a folder, or the run of an id. Raise InputError for another folder, a wrong
    hash, or a file that holds a secret."""
    folder = Path(source)
    if (folder / BUNDLE_MANIFEST).is_file():
        names, kind, card = [*read_bundle(folder).manifest.files, BUNDLE_MANIFEST], "bundle", ""
    elif is_own(folder, REPORT_MARKER):
        _, listed = read_marker(folder)
        if PAGE not in listed or not all(map(relative, listed)):
            raise Damaged(folder / OWN, f"it does not list {PAGE} and files beside it; make the report again")
        names, kind = [OWN, *listed], "report"
        card = _card(f"R2V report {folder.absolute().name}", f"Open `{PAGE}`.", {"sdk": "static", "app_file": PAGE})
    elif (folder / RUN_MANIFEST).is_file() or ("/" not in source and not folder.exists()):
        run = read_manifest(folder) if folder.exists() else DataRegistry().get(source)
        if run.status != "done":
            raise InputError(f"{source}: the run is {run.status}; only a done run is pushed")
        verify_run(run)
        folder, names, kind = run.output_dir, [RUN_MANIFEST, run.trajectories.name], "run"
        outcome = "none was executed by R2V" if run.imported else f"{run.n_success} succeeded"
        data = {"configs": [{"config_name": "default", "data_files": run.trajectories.name}]}
        card = _card(f"R2V run {run.run_id}", f"{run.n_episodes} episodes, one JSON line each; {outcome}.", data)
    else:
        raise InputError(f"{source}: no bundle, run or report; name the folder of one, or the id of a run")
    for name in names:
        _require_plain(folder / name)
        for part in _parts(folder / name):
            if secret := secret_in(part):
                raise InputError(f"{folder / name}: holds {secret}, so nothing is pushed; remove it there")
    return Parcel(kind=kind, folder=folder, files={name: content_sha256(folder / name) for name in names}, card=card)


def _require_plain(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise Damaged(path, "it is gone, or no plain file")


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the content of a file unpacked, in parts that overlap."""
    if path.name.endswith(LINES):
        yield from lines_of(path)
        return
    with path.open("rb") as file:
        before = b""
        while part := file.read(_CHUNK):
            yield before + part
            before = part[-_OVERLAP:]
    if path.suffix == ".js" and (shard := _SHARD.fullmatch(path.read_bytes())):
        yield gzip.decompress(base64.b64decode(shard[1]))


def _card(title: str, about: str, head: dict[str, Any]) -> str:
    plain = "".join(c for c in title if c.isprintable() and c not in "|`<>[]")
    text = f"{about} `r2v pull` checks it by the hashes in `{FILE_LIST}`."
    return f"---\n{write({'title': plain[:60], 'tags': ['r2v'], **head})}---\n\n# {plain}\n\n{text}\n"


def push(parcel: Parcel, repository: str, *, private: bool = False) -> str:
    """Commit the parcel to a repository, created if missing; return its full name. Raise EnvironmentFault where the
    hub is unreachable or refuses the token, InputError where the repository holds files that R2V did not push, or is
    public and `private` is set."""
    full = parcel.repository(repository)
    kind = next(type_ for kind, type_, _ in _KINDS.values() if kind == parcel.kind)
    name = "/".join(full.split("/")[-2:])
    files: dict[str, Any] = {file: parcel.folder / file for file in parcel.files}
    if parcel.card:
        record = json.dumps(hashed({"files": parcel.files}))
        files |= {"README.md": parcel.card.encode(), FILE_LIST: record.encode()}
    with _asking(full):
        from huggingface_hub import CommitOperationAdd, HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError

        if get_token() is None:
            raise EnvironmentFault("the hub needs a token to write: set HF_TOKEN, or run `hf auth login`")
        api = HfApi()
        try:
            sdk = "static" if kind == "space" else None
            api.create_repo(name, private=private or None, repo_type=kind, space_sdk=sdk)
        except HfHubHTTPError as error:
            if error.response.status_code != 409:
                raise
            _require_replaceable(api.repo_info(name, repo_type=kind), full, private)
        operations = [CommitOperationAdd(path_in_repo=file, path_or_fileobj=value) for file, value in files.items()]
        api.create_commit(name, operations, commit_message=f"Push a {parcel.kind} by R2V", repo_type=kind)
    return full


def _require_replaceable(info: Any, full: str, private: bool) -> None:
    names = {file.rfilename for file in info.siblings or ()}
    strays = sorted(names - {".gitattributes", "README.md"})
    if strays and not names & {BUNDLE_MANIFEST, FILE_LIST}:
        raise InputError(f"{full}: holds {shown(strays[0])}, which R2V did not push; name another repository")
    if private and not info.private:
        raise InputError(f"{full}: is there already and public; make it private on the hub, or name another repository")


def pull(repository: str, output: Path | None = None, *, revision: str | None = None) -> Path:
    """Download a pushed bundle, run or report; return its folder: `output`, else one of its name in outputs/bundles,
    data/runs or results/report. Raise InputError where the repository is missing, a hash is wrong or the folder exists;
    EnvironmentFault where the hub is unreachable."""
    match = _REPOSITORY.fullmatch(repository)
    if match is None:
        raise UsageError(f"{shown(repository)}: name a repository by OWNER/NAME, datasets/OWNER/NAME or spaces/...")
    content, kind, parent = _KINDS[match[1]]
    target = output or Path(parent) / match[2].rpartition("/")[2]
    _require_free(target)
    draft = target.with_name(f".{target.name}.draft")
    with writing(target):
        folder = make_own(draft, _DRAFT_MARKER, anew=True)
        try:
            with _asking(repository):
                from huggingface_hub import snapshot_download

                snapshot_download(match[2], repo_type=kind, revision=revision, local_dir=folder / "download")
            whole = _checked(folder, content, repository)
            if content == "run":
                run = read_manifest(whole)
                verify_run(run)
                target = output or target.with_name(run.run_id if RUN_ID.fullmatch(run.run_id) else target.name)
            _require_free(target)
            whole.rename(target)
        finally:
            remove_own(draft, _DRAFT_MARKER)
    if content == "run" and output is None:
        DataRegistry().rebuild()
    return target


def _require_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise InputError(f"{target}: is there already; name another folder, or move it away")


def _checked(draft: Path, content: str, repository: str) -> Path:
    """Return the folder of the files that the manifest names, moved out of the download, every hash checked."""
    download, whole = draft / "download", draft / "whole"
    whole.mkdir()
    listing = download / (BUNDLE_MANIFEST if content == "bundle" else FILE_LIST)
    if not listing.is_file():
        raise InputError(f"{repository}: holds no {content} that R2V pushed (no {listing.name})")
    names: dict[str, str] = read_hashed(listing).get("files", {})
    if wrong := wrong_hashes(names, "files"):
        raise Damaged(listing, wrong)
    if content == "bundle":
        names = {**names, BUNDLE_MANIFEST: content_sha256(listing)}
    for name, recorded in names.items():
        _require_plain(download / name)
        verify_file(download / name, recorded, listing.name)
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        (download / name).rename(whole / name)
    if content == "bundle":
        read_bundle(whole)
    return whole


@contextmanager
def _asking(repository: str) -> Iterator[None]:
    """Turn errors of the hub's library into R2V's errors of one line."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        raise EnvironmentFault("HF_HUB_OFFLINE is set, so the hub is not asked: unset it, run the same command again")
    try:
        yield
    except R2VError:
        raise
    except Exception as error:  # the library raises its own kinds and those of its HTTP client
        if isinstance(error, OSError) and error.errno in DISK_REFUSES:
            raise
        status, hub = getattr(getattr(error, "response", None), "status_code", None), constants.ENDPOINT
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if isinstance(error, (errors.RevisionNotFoundError, errors.HFValidationError)):
            raise UsageError(f"{repository}: no such name or --revision ({reason})") from None
        if status == 404 or isinstance(error, errors.RepositoryNotFoundError):
            hint = "a private one needs HF_TOKEN, a run is datasets/OWNER/NAME, a report spaces/OWNER/NAME"
            raise InputError(f"{repository}: no such repository at {hub}; {hint}") from None
        line = f"did not answer as it should ({reason}); run the same command again"
        if status in (401, 403):
            line = f"refused the token (status {status}); set HF_TOKEN to one that may, or run `hf auth login`"
        raise EnvironmentFault(f"{repository}: {hub} {line}") from None
