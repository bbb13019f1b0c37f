"""Bundle: a policy, its verifier and its router as one folder that needs nothing else of the project.

    write_bundle(config, Path("bundle"))      # r2v.pipeline.write_bundle, what `r2v export bundle` does
    bundle = read_bundle(Path("bundle"))      # every file hashed; bundle.policy loads in transformers

    README.md       model card: what it is, the executed table with its intervals, how to load it
    policy/         weights or adapters, configuration and tokenizer, as transformers reads them; none of a small model
                    that is asked through an API
    verifier/       the verifier's head or adapters; none beside an imputed router or such a model
    cases/          the index of the teacher's steps, where the router looks at it
    router/         r2v.json and disagreement_router.json, the router models, and threshold.json, where the score that
                    acts was placed and what that came to
    prices.json     the prices at which the table was counted
    settings.json   sections of the configuration that serving needs
    bundle.json     manifest: versions, threshold, where everything came from, the hash of every file; written last

A bundle travels: it is copied, pushed and downloaded. So its reader opens no link, follows no name out of the folder,
and hashes every file before anything is made of it. The hashes find damage, not lies: who alters a bundle on purpose
can compute them again.
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
from r2v.storage.artifact_manifest import Damaged, wrong_hashes
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed, verify_file
from r2v.storage.untrusted import plain_files

BUNDLE_MANIFEST = "bundle.json"
BUNDLE_FORMAT = 1
_LARGEST_MANIFEST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """What a bundle says of itself. Hashes are hex SHA-256."""

    format: int
    r2v_version: str
    benchmark: str
    benchmark_version: str
    base_model: str
    """What the policy was trained from, as `policy.model_name` named it."""
    weights: str
    """adapters or full; none of a model that is asked through an API."""
    feature_version: str
    """Version of the features that the router reads."""
    threshold: float
    """The score from which on the LLM is asked."""
    llm_call_rate: float
    """Share of steps that went to the LLM at this threshold, executed on calibration tasks; of an imputed router the
    share of recorded steps at which it would be asked."""
    sources: dict[str, str]
    """Job -> fingerprint of the artifact that it came from; evaluate is the table's."""
    results_sha256: str | None
    """Hash of the whole content of the evaluation, as `r2v verify-results` prints it; None of an imputed router, of
    which nothing was executed."""
    files: dict[str, str]
    """Relative name -> hash of its content, of every file but this one."""
    labels: Literal["executed", "imputed"] = "executed"
    """What the router was fitted on."""
    enable_thinking: bool | None = None
    """`policy.enable_thinking`: the value under which the chat template rendered prompts. None: it reads none."""
    prompt_version: int | None = None
    """Version of the form in which the policy was told its tools; None where it is told none."""
    score: str = "r2v"
    """The method whose score decides: r2v, or another one that calibration tasks preferred."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle of which every file was hashed."""

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
        """The verifier's folder; a bundle of an imputed router, or of a model behind an API, has none."""
        return self.folder / "verifier"

    @property
    def cases(self) -> Path:
        """The index of the teacher's steps; there is none where the router does not look at it."""
        return self.folder / "cases"

    @property
    def routers(self) -> dict[str, Path]:
        """The files of the router models, by the method whose score each is."""
        files = (self.folder / "router" / f"{name}.json" for name in ("r2v", "disagreement_router"))
        return {path.stem: path for path in files if path.relative_to(self.folder).as_posix() in self.manifest.files}


def write_bundle_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Put the manifest into the folder, whole or not at all, with a hash of itself."""
    write_json(folder / BUNDLE_MANIFEST, hashed(to_dict(manifest)))


def read_bundle(folder: Path) -> Bundle:
    """The bundle in a folder. Raises InputError where there is none, Damaged for a file that is not what was written,
    one that is missing, and one that nobody wrote there."""
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
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: no bundle (no {BUNDLE_MANIFEST}); `r2v export {folder}` makes one") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_MANIFEST:
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
