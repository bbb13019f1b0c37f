"""The run of a collection: which one an attempt goes on with, begins anew, or helps with.

with begin(cfg, work, registry) as handle: ...       # in the process that collects
run = under_way(cfg, work)                           # in a helper
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from r2v.config import identity
from r2v.data.registry import DataRegistry
from r2v.data.run import RunHandle, verify_run
from r2v.data.tools import Tools
from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, Damaged

if TYPE_CHECKING:
    from r2v.data.manifest import RunManifest
    from r2v.envs.base import Benchmark
    from r2v.stages.collect import CollectSettings

PROVIDER = "provider"
"""Folder of a run with the journal of provider requests and what they cost."""
_LOOKS = 30
"""Looks, a second apart, at whether the run has begun that a helper is to help with."""


def begin(cfg: CollectSettings, work: Work, registry: DataRegistry) -> RunHandle:
    """A new run, or one of this very configuration: interrupted, damaged, or done and merely not known as done."""
    from r2v.envs.base import load_benchmark
    from r2v.rollout.model_factory import teacher_name

    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    name = teacher_name(cfg.teacher, benchmark)
    runs = registry.query(benchmark=cfg.env.benchmark)
    same = [m for m in runs if m.fingerprint == work.fingerprint and not (m.status == "done" and m.all_faults)]
    unfinished = [m for m in same if m.status in ("interrupted", "partial", "failed") or _to_mend(cfg, m)]
    if not work.anew:  # its artifact was damaged or lost, or a kill came before it: what was paid for is there
        unfinished += [m for m in same if m.status == "done" and m not in unfinished]
    run_id = cfg.run.id or (unfinished[-1].run_id if unfinished else None)
    base = work.root / cfg.run.base if cfg.run.base else None
    return registry.begin_run(
        benchmark=cfg.env.benchmark,
        provider=cfg.teacher.provider,
        model_name=name,
        fingerprint=work.fingerprint,
        config=identity(cfg),
        base=base,
        tags=cfg.run.tags,
        notes=cfg.run.notes,
        tools=_tools(benchmark),
        run_id=run_id,
    )


def _tools(benchmark: Benchmark) -> Tools | None:
    """What a fresh world says its tools are; None, with a line, where it fails to."""
    from r2v.envs.base import tools_of
    from r2v.envs.guard import require_tools
    from r2v.policy.training_tools import recorded

    try:
        return recorded(require_tools(tools_of(benchmark), benchmark))
    except UsageError as error:
        logger.warning("  the run is recorded without tools: %s", error)
        return None


def under_way(cfg: CollectSettings, work: Work) -> RunManifest | None:
    """The run that the attempt collects, or goes on with; None where none appears for a while."""
    for _ in range(_LOOKS):
        runs = DataRegistry(work.root / "data").query(benchmark=cfg.env.benchmark)
        own = [m for m in runs if m.fingerprint == work.fingerprint and cfg.run.id in (None, m.run_id)]
        unfinished = [m for m in own if m.status != "done"]
        if unfinished or (work.folder / ARTIFACT_MANIFEST).exists():
            return unfinished[-1] if unfinished else None
        time.sleep(1.0)
    return None


def _to_mend(cfg: CollectSettings, run: RunManifest) -> bool:
    """Whether a finished run's trajectories were damaged since, and can be played again. Raises InputError where a
    provider would have to be paid a second time, because the journal of its answers is gone too."""
    try:
        if run.status == "done":
            verify_run(run)
        return False
    except Damaged as error:
        if cfg.teacher.provider != "scripted" and not (run.output_dir / PROVIDER).is_dir():
            raise InputError(
                f"{error}, and its journal {run.output_dir / PROVIDER} is gone: put either back, or move "
                f"{run.output_dir} away to collect (and pay) anew"
            ) from None
        return True
