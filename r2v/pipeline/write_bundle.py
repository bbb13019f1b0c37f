"""Writing a bundle: the policy, verifier and router of the published table.

All of it comes from the evaluation: the models from its inputs, the settings and prices from its recorded
configuration. A router trained since has no table, and is named in a warning; another configuration on the command
line is refused. The folder is made under a draft name and renamed when complete, its manifest written last.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import r2v
from r2v.config import Config, identity, load_recorded
from r2v.config.evaluation import IMPUTED
from r2v.constraints import shown
from r2v.data.interchange.conversation import request_of
from r2v.data.store import StoredEpisodes
from r2v.errors import InputError, R2VError, UsageError
from r2v.evaluation.setup import read_setup
from r2v.evaluation.tables.build import STRUCTURED
from r2v.log import logger
from r2v.pipeline.inputs import flat, place_of, published, read_published
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.model_card import imputed_card, model_card
from r2v.pipeline.plan.jobs_to_do import plan
from r2v.serve.bundle.domain import domain_of, write_domain
from r2v.serve.bundle.manifest import BUNDLE_FORMAT, BundleManifest, write_bundle_manifest
from r2v.storage.artifact import attempt_of
from r2v.storage.files import content_sha256, write_json, write_text, writing
from r2v.storage.integrity import CONFIGURATION, Artifact
from r2v.storage.removal import Marker, make_own, remove_own
from r2v.storage.weights import ADAPTERS

_ELSEWHERE = ("ablations.", "hierarchical.")
"""Sections that no stage of an evaluation reads."""
_ABSENT = "not set"


def recorded_config(name: str, what: str, given: Config, root: Path) -> Config:
    """Return the recorded configuration of a published job. Raise UsageError where the given one differs in a value by
    which `r2v run` would make the job anew; InputError where another version of R2V wrote it."""
    link = place_of(given, name, root)
    path = link / CONFIGURATION
    try:
        recorded = load_recorded(path)
    except UsageError as error:
        raise InputError(f"{path}: was written by another version of R2V ({error}); make {link} again") from None
    before, now = (flat(identity(config)) for config in (recorded, given))
    keys = [key for key in sorted(before.keys() | now) if not key.startswith(_ELSEWHERE)]
    pairs = ((key, before.get(key, _ABSENT), now.get(key, _ABSENT)) for key in keys)
    differing = [(key, value, other) for key, value, other in pairs if value != other]
    if differing and not _up_to_date(name, given, root):
        raise UsageError(f"{_listed(differing, what)}; use --config {path}, or make {what} anew with these values")
    return recorded


def _up_to_date(name: str, config: Config, root: Path) -> bool:
    """True if every stage up to a published job is up to date here, with the runs of `data.runs` or the latest ones."""
    collected = [row.name for row in JOBS if row.place is None]
    try:
        steps = plan(config, without=collected, root=root)
        artifact = next((step.artifact for step in steps if step.job.name == name), None)
    except R2VError:
        return False
    return artifact is not None and artifact.fingerprint == published(config, name, root).fingerprint


def _listed(differing: list[tuple[str, Any, Any]], what: str) -> str:
    key, before, now = differing[0]
    others = ", ".join(key for key, _, _ in differing[1:4]) + (", ..." if len(differing) > 4 else "")
    line = f"{key} is {shown(before)} in {what} and {shown(now)} on the command line"
    return f"{line} (others that differ: {others})" if others else line


PARTS = {"preference": ("final", "policy"), "verifier": ("final", "verifier")}
"""Job -> (folder of its artifact, folder of the bundle)."""
_CASES = "case_support"
"""Job whose index is copied if the router reads it."""
ROUTER_FILES = ("r2v.json", "disagreement_router.json", "threshold.json")
"""An imputed router has no disagreement_router.json."""
_DRAFT_MARKER = Marker(kind="draft of a bundle")
_SECTIONS = ("env", "policy", "inference", "router", "cost", "teacher")


def write_bundle(config: Config, output: Path, root: Path = Path()) -> BundleManifest:
    """Make the bundle of this configuration's published evaluation; with `router.label=imputed`, of the published clone
    and its imputed router, which were never executed.

    Raise UsageError where the configuration differs from the recorded one; InputError where `output` exists, nothing
    was evaluated, the evaluation played no trained policy, or the published router's labels are of the other kind.
    """
    if output.exists() or output.is_symlink():
        raise InputError(f"{output}: is there already; name another folder")
    if config.router.imputed:
        inputs = _imputed_inputs(config, root)
        recorded = recorded_config("router", "the router's training", config, root)
        return _written(output, lambda draft: _fill_imputed(draft, recorded, inputs))
    table = read_published(config, "evaluate", root)
    recorded = recorded_config("evaluate", "the evaluation", config, root)
    _, inputs = attempt_of(table.folder)
    parts = () if recorded.policy.is_api else PARTS
    if lacking := [name for name in (*parts, "router") if name not in inputs]:
        raise InputError(f"{table.folder}: was evaluated without {', '.join(lacking)}; a bundle needs all of them")
    _warn_of_newer(config, inputs, root)
    return _written(output, lambda draft: _fill(draft, recorded, table, inputs))


def _written(output: Path, fill: Callable[[Path], BundleManifest]) -> BundleManifest:
    """Write a bundle by `fill` in a draft folder, and rename it to `output` when complete. The bundle lies one level
    below the draft's marker, for it may hold no file that its manifest does not name."""
    draft = output.with_name(f".{output.name}.draft")
    with writing(output):
        whole = make_own(draft, _DRAFT_MARKER, anew=True) / "bundle"
        whole.mkdir()
        try:
            manifest = fill(whole)
            whole.rename(output)
        finally:
            remove_own(draft, _DRAFT_MARKER)
    return manifest


def _warn_of_newer(config: Config, inputs: dict[str, Artifact], root: Path) -> None:
    for name in (*PARTS, "router"):
        if name not in inputs:
            continue
        try:
            now = published(config, name, root)
        except InputError:
            continue
        if now.data_sha256 != inputs[name].data_sha256:
            logger.warning(
                "  published artifact is newer than the evaluation: job=%s; the bundle holds the evaluated one, and "
                "`r2v evaluate` measures the newer one",
                name,
            )


def _fill(draft: Path, config: Config, table: Artifact, inputs: dict[str, Artifact]) -> BundleManifest:
    for job, (held, folder) in PARTS.items():
        if job not in inputs:
            continue
        held_names = [name for name in inputs[job].files if name.startswith(f"{held}/")]
        _copy(inputs[job], {name: folder + name.removeprefix(held) for name in held_names}, draft)
    _copy_router(inputs["router"], draft)
    _copy_cases(inputs, draft)
    setup = read_setup(table.folder)
    _write_settings(draft, config, {"cost": identity(config.cost), "models": setup.models, "prices": setup.prices})
    if setup.domain is not None:
        write_domain(draft, setup.domain)
    threshold: dict[str, Any] = json.loads((draft / "router" / "threshold.json").read_text())
    sources = {name: artifact.fingerprint for name, artifact in sorted(inputs.items())}
    manifest = BundleManifest(
        benchmark=setup.benchmark,
        benchmark_version=setup.benchmark_version,
        llm_call_rate=float(threshold["realised"]["llm_call_rate"]),
        sources=sources | {"evaluate": table.fingerprint},
        results_sha256=table.data_sha256,
        **_of_draft(draft, config, threshold),
    )
    write_text(draft / "README.md", model_card(manifest, table.folder / STRUCTURED / "main_table.csv", setup.level))
    return _sealed(manifest, draft)


def _write_settings(draft: Path, config: Config, prices: dict[str, Any]) -> None:
    write_json(draft / "prices.json", prices)
    write_json(draft / "settings.json", {name: identity(getattr(config, name)) for name in _SECTIONS})


def _sealed(manifest: BundleManifest, draft: Path) -> BundleManifest:
    """Write the manifest, with the hash of every file, into the draft."""
    paths = sorted(path for path in draft.rglob("*") if path.is_file())
    hashes = {path.relative_to(draft).as_posix(): content_sha256(path) for path in paths}
    manifest = replace(manifest, files=hashes)
    write_bundle_manifest(draft, manifest)
    return manifest


def _imputed_inputs(config: Config, root: Path) -> dict[str, Artifact]:
    """Return the published imputed router and its inputs. Raise InputError where its labels were executed."""
    router = read_published(config, "router", root)
    if router.summary.get("labels") != IMPUTED:
        raise InputError(f"{router.folder}: its labels were executed; export it without router.label=imputed")
    _, behind = attempt_of(attempt_of(router.folder)[1]["router_features"].folder)
    clone = behind.get("bc")
    if clone is not None and published(config, "bc", root).data_sha256 != clone.data_sha256:
        logger.warning("  the published bc is newer than the router's; the bundle holds the one of the router")
    return {"router": router} | {name: behind[name] for name in ("bc", _CASES, "perturb") if name in behind}


def _fill_imputed(draft: Path, config: Config, inputs: dict[str, Artifact]) -> BundleManifest:
    if (clone := inputs.get("bc")) is not None:
        names = [name for name in clone.files if name.startswith("final/")]
        _copy(clone, {name: f"policy{name.removeprefix('final')}" for name in names}, draft)
    _copy_router(inputs["router"], draft)
    _copy_cases(inputs, draft)
    _copy(inputs["router"], {"records.html": "records.html"}, draft)
    recorded = StoredEpisodes(inputs["perturb"].file("trajectories.jsonl"), keep=lambda e: e.construction == "native")
    write_domain(draft, domain_of(map(request_of, recorded)))
    models = {"slm": config.policy.model_name, "llm": config.teacher.model_name}
    _write_settings(draft, config, {"cost": identity(config.cost), "models": models})
    threshold: dict[str, Any] = json.loads((draft / "router" / "threshold.json").read_text())
    manifest = BundleManifest(
        benchmark=config.env.benchmark,
        benchmark_version="",
        llm_call_rate=float(threshold[IMPUTED]["llm_call_rate"]),
        sources={name: artifact.fingerprint for name, artifact in sorted(inputs.items())},
        results_sha256=None,
        labels="imputed",
        **_of_draft(draft, config, threshold),
    )
    report: dict[str, Any] = json.loads(inputs["router"].file("router_report.json").read_text())
    write_text(draft / "README.md", imputed_card(manifest, threshold[IMPUTED], report))
    return _sealed(manifest, draft)


def _copy_router(artifact: Artifact, draft: Path) -> None:
    _copy(artifact, {name: f"router/{name}" for name in ROUTER_FILES if name in artifact.files}, draft)


def _copy_cases(inputs: dict[str, Artifact], draft: Path) -> None:
    if _CASES in inputs:
        _copy(inputs[_CASES], {name: f"cases/{name}" for name in inputs[_CASES].files}, draft)


def _copy(artifact: Artifact, names: dict[str, str], draft: Path) -> None:
    """Copy content files of an artifact, no checkpoints. names: name in the artifact -> name in the bundle."""
    for name, target in names.items():
        (draft / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.file(name), draft / target)


def _of_draft(draft: Path, config: Config, threshold: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of bundle.json on the policy and the router in a draft, with the acting threshold and score."""
    router: dict[str, Any] = json.loads((draft / "router" / "r2v.json").read_text())
    return {
        "format": BUNDLE_FORMAT,
        "r2v_version": r2v.__version__,
        "base_model": config.policy.model_name,
        "enable_thinking": config.policy.enable_thinking,
        "prompt_version": config.policy.prompt_version,
        "weights": "none" if config.policy.is_api else "adapters" if (draft / "policy" / ADAPTERS).exists() else "full",
        "feature_version": str(router["feature_version"]),
        "threshold": float(threshold["tau"]),
        "score": str(threshold.get("score", "r2v")),
        "files": {},
    }
