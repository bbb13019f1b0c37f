"""The judge's teacher: the model that is asked about recorded steps, and how it is asked.

teacher = judge_teacher(cfg.teacher, runs, artifacts)      # as configured, or else as the collection was

A configuration that names no provider (`teacher.provider=scripted`) judges by the model that collected the runs: its
endpoint, its sampling, batches or calls, and caps, as they stand beside the collection's artifact. A key of
`teacher.*` that has another value than its default is taken in place of the collection's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from r2v.config import TeacherConfig, load
from r2v.data.manifest import RunManifest
from r2v.errors import InputError, UsageError
from r2v.log import logger

SETTINGS_FILE = "config.yaml"
"""What an artifact keeps of the whole configuration that made it."""


def judge_teacher(teacher: TeacherConfig, runs: Sequence[RunManifest], artifacts: Path) -> TeacherConfig:
    """Who judges these runs. artifacts: the folder of the artifacts that the runs' fingerprints name.

    Raises UsageError where no provider is named and the runs name none, or several; InputError where the
    collection's settings cannot be read.
    """
    if teacher.provider != "scripted":
        return teacher
    found = {run.run_id: _collected_by(run, artifacts) for run in runs}
    for run_id, known in found.items():
        if known is None:
            raise UsageError(
                f"verifier.mode=llm_judge: teacher.provider is {teacher.provider}, and run {run_id} was "
                "collected by no provider's model either; set teacher.provider to openai, anthropic or a provider of "
                "your own"
            )
    others = list(found.values())
    if any(other != others[0] for other in others):
        raise UsageError(
            f"verifier.mode=llm_judge: runs {', '.join(found)} were collected under different teacher.*; say who is to "
            "judge by teacher.provider and teacher.model_name"
        )
    given = {
        item.name: value
        for item in dataclasses.fields(teacher)
        if (value := getattr(teacher, item.name)) != getattr(TeacherConfig(), item.name)
    }
    assert others[0] is not None
    judge = dataclasses.replace(others[0], **given)
    also = f", with {', '.join(f'teacher.{name}' for name in sorted(given))} as configured" if given else ""
    logger.info(
        "  the judge is %s of %s, as run %s was collected%s", judge.model_name, judge.provider, runs[0].run_id, also
    )
    return judge


def _collected_by(run: RunManifest, artifacts: Path) -> TeacherConfig | None:
    """The teacher of a run with all that says how it is asked; None: no provider's model."""
    if run.imported or run.provider == "scripted":
        return None
    path = artifacts / f"collect-{run.fingerprint}" / SETTINGS_FILE
    if not path.is_file():
        raise InputError(
            f"{path}: missing, so that it is not known how run {run.run_id} asked {run.model_name}; put it back, or "
            "set teacher.provider and teacher.model_name"
        )
    return load(path).teacher
