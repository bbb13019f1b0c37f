"""Store of measurements: files by hash, shipped with the package or made in this project. No torch.

The package ships the measurements of its own configurations, written by `python benchmarks/planner.py --ship`. The hash
covers the case, including config.json, and the versions of the libraries that run it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.memory.measurement import MeasuredCase, MeasuredMemory, ModelSizes, from_values
from r2v.memory.model_registry import ModelConfigValues
from r2v.storage.files import write_json
from r2v.storage.paths import MEASURED

Measure = Callable[[MeasuredCase | ModelConfigValues], dict[str, Any]]
"""Function that measures a case, or counts the parameters of a model, and returns JSON values."""
_SHIPPED = "shipped"


class NotMeasuredError(InputError):
    """The measurement is not stored, and measuring is not allowed here."""


class UnmeasurableError(UsageError):
    """The model does not run on fake tensors."""


def measurement(case: MeasuredCase, measure: Measure | None = None) -> MeasuredMemory:
    """Return the measurement of a case. Raise NotMeasuredError if it is not stored and `measure` is None, and as
    `measure` does."""
    subject = f"memory of {case.code} for {case.model.get('model_type')}"
    return from_values(_record(case.key, case, measure, subject, from_values))


def sizes(values: ModelConfigValues, name: str, measure: Measure | None = None) -> ModelSizes:
    """Return the parameter counts of a model. Raise as `measurement` does."""
    return ModelSizes(**_record(sizes_key(values), values, measure, f"sizes of {name}", _sizes))


def stored_sizes(values: ModelConfigValues) -> ModelSizes | None:
    """Return the stored parameter counts of a model, or None."""
    record = _stored(sizes_key(values), _sizes)
    return None if record is None else ModelSizes(**record)


def _sizes(record: dict[str, Any]) -> ModelSizes:
    return ModelSizes(**record)


def sizes_key(values: ModelConfigValues) -> str:
    """Return the hash of a config.json."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def _record(
    key: str,
    request: MeasuredCase | ModelConfigValues,
    measure: Measure | None,
    subject: str,
    read: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    record = _stored(key, read)
    if record is None:
        if measure is None:
            raise NotMeasuredError(
                f"{subject}: not measured yet; r2v plan --config FILE, or --model NAME, measures it once"
            )
        record = measure(request)
        write_json(MEASURED / f"{key}.json", record)
    return record


def _stored(key: str, read: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
    """Return the record of a key, or None if it is missing or `read` fails: a damaged file is measured again."""
    if (record := shipped().get(key)) is not None:
        return record
    try:
        loaded: dict[str, Any] = json.loads((MEASURED / f"{key}.json").read_text())
        read(loaded)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return loaded


@cache
def shipped() -> dict[str, dict[str, Any]]:
    """Return all records shipped with the package by key."""
    records = dict[str, dict[str, Any]]()
    folder = resources.files("r2v.memory") / _SHIPPED
    for file in folder.iterdir() if folder.is_dir() else ():
        records |= json.loads(file.read_text())
    return records


class Measuring:
    """Child process that measures: started by the first case, ended with the block. `measured` counts its cases."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self.measured = 0

    def __enter__(self) -> Measure:
        return self._measure

    def __exit__(self, *_: object) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            self._child.wait()

    def _measure(self, request: MeasuredCase | ModelConfigValues) -> dict[str, Any]:
        """Return the result of a case or a model. Raise UsageError with the child's reason if it fails."""
        if self._child is None:
            logger.info("  memory measurement started: folder=%s", MEASURED)
            self._child = _started()
        assert self._child.stdin is not None and self._child.stdout is not None
        values = {"case": asdict(request)} if isinstance(request, MeasuredCase) else {"model": request}
        self._child.stdin.write(json.dumps(values) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise UsageError(f"memory: the measuring process ended with code {self._child.wait()}")
        result: dict[str, Any] = json.loads(answer)
        if "error" in result:
            raise UnmeasurableError(f"cannot be planned: {result['error']}")
        self.measured += 1
        return result


def _started() -> subprocess.Popen[str]:
    here = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "r2v.memory.measured.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | here | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
