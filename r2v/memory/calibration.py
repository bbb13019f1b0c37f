"""Constants that a probe on a GPU gives the planner, and the file that keeps them.

The planner counts tensors. What a GPU adds in a phase (kernels' workspaces, an attention kernel that computes
otherwise than assumed) is proportional to the work, so a probe gives each phase one factor on its `working` bytes:

    factor = (measured - resting - gradients) / working

A factor holds for the model, GPU and torch that it was measured with, and for no other; the file keeps all of them.
No torch is loaded here: `r2v plan --calibration FILE` runs on a login node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from r2v.errors import InputError, UsageError
from r2v.memory.planner.phases import Need
from r2v.memory.shapes import Shape
from r2v.storage.files import write_json

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a calibration holds for."""

    model: str
    """The last part of its name, which is the same for a directory and the hub."""
    parameters: int
    gpu: str
    """As torch.cuda.get_device_name says it."""
    torch: str
    """torch.__version__."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Factors on the `working` bytes of phases, by the phase's name."""

    key: Key
    factors: Mapping[str, float]


def factor(need: Need, measured: float) -> float:
    """What brings a plan's need of a phase to the bytes that were measured; not above 0 where those are fewer than
    what stands there all the time by the plan, which is then of another training."""
    return (measured - need.resting - need.gradients) / need.working


def keep(path: Path, new: Calibration) -> None:
    """Put a calibration into the file, in place of an earlier one of the same key; its phases add to that one's.
    Raises InputError for a file that is something else, EnvironmentFault where the disk refuses."""
    kept = read(path) if path.exists() else []
    before = next((one.factors for one in kept if one.key == new.key), {})
    merged = Calibration(key=new.key, factors={**before, **new.factors})
    rest = [one for one in kept if one.key != new.key]
    write_json(
        path,
        {
            "format": _FORMAT,
            "calibrations": [
                {**asdict(one.key), "factors": dict(sorted(one.factors.items()))} for one in (*rest, merged)
            ],
        },
    )


def read(path: Path) -> list[Calibration]:
    """All calibrations of a file. Raises InputError where it is missing or is something else."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, expected {_FORMAT}")
        return [_calibration(one) for one in content["calibrations"]]
    except FileNotFoundError:
        raise InputError(f"calibration {path}: no such file; r2v plan --probe FILE writes it on a GPU") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"calibration {path}: not one of this version ({error}); delete it and probe again") from None


def _calibration(values: dict[str, Any]) -> Calibration:
    factors = {str(phase): float(factor) for phase, factor in values["factors"].items()}
    if not all(0 < factor < float("inf") for factor in factors.values()):
        raise ValueError(f"factors {factors}")
    key = Key(
        model=str(values["model"]),
        parameters=int(values["parameters"]),
        gpu=str(values["gpu"]),
        torch=str(values["torch"]),
    )
    return Calibration(key=key, factors=factors)


def factors_for(path: Path | None, shape: Shape, gpu: str = "") -> Mapping[str, float]:
    """Those of a file for this model, a GPU of this name and the torch installed; none without a file. Raises as `read`
    and `chosen` do."""
    return {} if path is None else chosen(read(path), shape, gpu).factors


def chosen(kept: Sequence[Calibration], shape: Shape, gpu: str = "", torch: str = "") -> Calibration:
    """The one of this model, of the torch named (or else installed) and of the only GPU whose name has `gpu` in it,
    its letters' case apart. Raises UsageError where there is none, or several."""
    torch = torch or metadata.version("torch")
    same = [one for one in kept if (one.key.model, one.key.parameters) == (called(shape), shape.parameters)]
    fitting = [one for one in same if one.key.torch == torch and gpu.lower() in one.key.gpu.lower()]
    if len(fitting) == 1:
        return fitting[0]
    have = ", ".join(f"{one.key.gpu} with torch {one.key.torch}" for one in fitting or same) or "nothing of this model"
    remedy = "name one with --gpu-type" if fitting else "probe again, or leave the calibration out"
    raise UsageError(
        f"calibration: wanted one for {called(shape)} ({shape.parameters:,} parameters), a GPU named "
        f"{gpu or 'anything'}, torch {torch}; the file has {have}; {remedy}"
    )


def called(shape: Shape) -> str:
    """A model's name as keys have it."""
    return shape.name.rstrip("/").rpartition("/")[2]
