"""Bundle: a policy, its verifier and its router in one self-contained folder.

    write_bundle(config, Path("bundle"))      # r2v.pipeline.write_bundle, as `r2v export bundle` calls it
    bundle = read_bundle(Path("bundle"))      # every file hashed; bundle.policy loads in transformers

    README.md       model card: description, the executed table with its intervals, instructions for loading
    policy/         weights or adapters, configuration and tokenizer, for transformers; missing for a small model behind
                    an API
    verifier/       the verifier's head or adapters; missing for an imputed router or a small model behind an API
    cases/          the index of the teacher's steps, if the router reads it
    router/         r2v.json and disagreement_router.json, the router models, and threshold.json, thresholds and their
                    results on calibration tasks
    prices.json     the prices of the table
    settings.json   sections of the configuration that serving needs
    bundle.json     manifest: versions, threshold, sources, the hash of every file; written last

A bundle is copied, pushed and downloaded. Its reader therefore opens no link, follows no name out of the folder, and
hashes every file before use. The hashes find damage, not tampering: an attacker can compute them again.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from r2v.data.episode import to_dict
from r2v.data.schema import from_dict
from r2v.errors import InputError
from r2v.storage.artifact_manifest import Damaged, plain_files, wrong_hashes
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed, verify_file

BUNDLE_MANIFEST = "bundle.json"
BUNDLE_FORMAT = 1
_LARGEST_MANIFEST = 4 << 20
"""Limit in bytes, so that a hostile bundle cannot exhaust the memory."""


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """Record of a bundle. Hashes are hex SHA-256."""

    format: int
    r2v_version: str
    benchmark: str
    benchmark_version: str
    base_model: str
    """Base model of the policy (`policy.model_name`)."""
    weights: str
    """adapters, full, or none for a model behind an API."""
    feature_version: str
    """Version of the router's features."""
    threshold: float
    """The LLM acts if the score reaches it."""
    llm_call_rate: float
    """Share of LLM steps at this threshold: executed on calibration tasks, or computed on recorded steps for an imputed
    router."""
    sources: dict[str, str]
    """Job -> fingerprint of its artifact; that of evaluate holds the table."""
    results_sha256: str | None
    """Hash of the evaluation's whole content, as `r2v verify-results` prints it; None for an imputed router, which was
    never executed."""
    files: dict[str, str]
    """Relative name -> hash of the content, for every file but the manifest."""
    labels: Literal["executed", "imputed"] = "executed"
    """Kind of labels that the router was fitted on."""
    enable_thinking: bool | None = None
    """`policy.enable_thinking`, as passed to the chat template. None: the template does not read it."""
    prompt_version: int | None = None
    """Version of the prompt's form of tools; None for a policy without tools in its prompt."""
    score: str = "r2v"
    """Method whose score decides: r2v, or a better one on calibration tasks."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle whose files were all verified against their hashes."""

    folder: Path
    manifest: BundleManifest

    @classmethod
    def load(cls, folder: str | Path) -> Bundle:
        """Read the bundle in a folder, as `read_bundle` does."""
        return read_bundle(Path(folder))

    @property
    def policy(self) -> Path:
        """The policy's folder, for `from_pretrained`."""
        return self.folder / "policy"

    @property
    def verifier(self) -> Path:
        """The verifier's folder; missing for an imputed router or a model behind an API."""
        return self.folder / "verifier"

    @property
    def cases(self) -> Path:
        """Folder of the index of the teacher's steps; missing if the router does not read it."""
        return self.folder / "cases"

    @property
    def routers(self) -> dict[str, Path]:
        """Files of the router models by method."""
        files = (self.folder / "router" / f"{name}.json" for name in ("r2v", "disagreement_router"))
        return {path.stem: path for path in files if path.relative_to(self.folder).as_posix() in self.manifest.files}


def write_bundle_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Write the manifest into the folder atomically, with a hash of itself."""
    write_json(folder / BUNDLE_MANIFEST, hashed(to_dict(manifest)))


def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in a folder. Raises InputError if there is no bundle, Damaged for a changed, a missing or an
    unlisted file."""
    manifest = _manifest(folder)
    names = {name for name in plain_files(folder) if not name.endswith("/")}
    for name, recorded in manifest.files.items():
        verify_file(folder / name, recorded, BUNDLE_MANIFEST)
    if stray := sorted(names - manifest.files.keys() - {BUNDLE_MANIFEST}):
        raise Damaged(folder / stray[0], f"{BUNDLE_MANIFEST} does not name it; move it away")
    return Bundle(folder=folder, manifest=manifest)


def _manifest(folder: Path) -> BundleManifest:
    path = folder / BUNDLE_MANIFEST
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: no bundle (no {BUNDLE_MANIFEST}); `r2v export {folder}` makes one") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_MANIFEST:
        raise Damaged(path, "it is no plain file of the size that a manifest has")
    record = read_hashed(path)
    if record.get("format") != BUNDLE_FORMAT:
        raise Damaged(path, f"its format is {json.dumps(record.get('format'))[:40]}, this R2V reads {BUNDLE_FORMAT}")
    if wrong := wrong_hashes(record.get("files"), "files"):
        raise Damaged(path, wrong)
    try:
        return from_dict(BundleManifest, record)
    except ValueError as error:
        raise Damaged(path, f"it is no manifest of a bundle ({error})") from None
