"""Calibration: one measured factor per phase of a plan, and the file of these factors.

The planner counts tensors. A GPU's additional memory in a phase (workspaces of kernels, another attention kernel than
assumed) is proportional to the micro-batch, so a probe gives each phase one factor on its activation bytes:

    factor = (measured - static - gradients) / activation

A factor holds only for the model, GPU and torch version of its probe, which the file records. No torch is loaded here:
`r2v plan --calibration FILE` runs on a login node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

from r2v.errors import InputError, UsageError
from r2v.memory.models import KnownModel
from r2v.storage.files import write_json

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measured over planned activation bytes by phase of the plan, for one model, GPU and torch. Raise
    ValueError for a factor not above 0."""

    model: str
    """Last part of the model's name, equal for a directory and the hub."""
    parameters: int
    """Number of parameters."""
    gpu: str
    """torch.cuda.get_device_name()."""
    torch: str
    """torch.__version__."""
    factors: Mapping[str, float]
    """Phase -> factor."""

    def __post_init__(self) -> None:
        if not all(0 < float(factor) < float("inf") for factor in self.factors.values()):
            raise ValueError(f"factors {self.factors}")

    def same_key(self, other: Calibration) -> bool:
        """True if both hold for the same model, GPU and torch."""
        return replace(self, factors={}) == replace(other, factors={})


def save(path: Path, new: Calibration) -> None:
    """Add a calibration to the file; new factors replace those of the same model, GPU, torch and phase. Raise
    InputError for a malformed file, EnvironmentFault if the disk refuses."""
    stored = read(path) if path.exists() else []
    before = next((calibration.factors for calibration in stored if calibration.same_key(new)), {})
    merged = replace(new, factors=dict(sorted({**before, **new.factors}.items())))
    others = [calibration for calibration in stored if not calibration.same_key(new)]
    records = [asdict(calibration) for calibration in (*others, merged)]
    write_json(path, {"format": _FORMAT, "calibrations": records})


def read(path: Path) -> list[Calibration]:
    """Return all calibrations of a file. Raise InputError if it is missing or malformed."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}, expected {_FORMAT}")
        return [Calibration(**record) for record in content["calibrations"]]
    except FileNotFoundError:
        raise InputError(f"calibration {path}: no such file; r2v plan --probe FILE writes it on a GPU") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"calibration {path}: not one of this version ({error}); delete it and probe again") from None


def factors_for(path: Path | None, model: KnownModel, gpu: str = "") -> Mapping[str, float]:
    """Return the factors of a file for this model, GPU name and the installed torch; none without a file. Raise as
    `read` and `select` do."""
    return {} if path is None else select(read(path), model, gpu, metadata.version("torch")).factors


def select(stored: Sequence[Calibration], model: KnownModel, gpu: str, torch: str) -> Calibration:
    """Return the calibration of this model and torch on the only GPU whose name contains `gpu`, ignoring case. Raise
    UsageError if none or several match."""
    label, parameters = model_label(model), model.sizes.parameters
    same_model = [entry for entry in stored if (entry.model, entry.parameters) == (label, parameters)]
    matching = [entry for entry in same_model if entry.torch == torch and gpu.lower() in entry.gpu.lower()]
    if len(matching) == 1:
        return matching[0]
    available = [f"{entry.gpu} with torch {entry.torch}" for entry in matching or same_model]
    remedy = "name one with --gpu-type" if matching else "probe again, or leave the calibration out"
    raise UsageError(
        f"calibration: wanted one for {label} ({parameters:,} parameters), a GPU named {gpu or 'anything'}, torch "
        f"{torch}; the file has {', '.join(available) or 'nothing of this model'}; {remedy}"
    )


def model_label(model: KnownModel) -> str:
    """Return a model's name in calibrations."""
    return model.name.rstrip("/").rpartition("/")[2]
