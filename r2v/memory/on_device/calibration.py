"""Calibration: one factor per phase that a probe on a GPU measured, and the file that keeps these factors.

The planner counts tensors. What a GPU adds in a phase (kernels' workspaces, an attention kernel that computes
otherwise than assumed) is proportional to the micro-batch, so a probe gives each phase one factor on its activation
bytes:

    factor = (measured - static - gradients) / activation

A factor holds for the model, GPU and torch that it was measured with, and for no other; the file keeps all of them.
No torch is loaded here: `r2v plan --calibration FILE` runs on a login node.
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
    """Factors on the activation bytes of phases, and what they hold for. Raises ValueError for a factor that is not
    above 0."""

    model: str
    """The last part of its name, which is the same for a directory and the hub."""
    parameters: int
    """Number of parameters."""
    gpu: str
    """As torch.cuda.get_device_name says it."""
    torch: str
    """torch.__version__."""
    factors: Mapping[str, float]
    """By the phase's name."""

    def __post_init__(self) -> None:
        if not all(0 < float(factor) < float("inf") for factor in self.factors.values()):
            raise ValueError(f"factors {self.factors}")

    def same_key(self, other: Calibration) -> bool:
        """True if both hold for the same model, GPU and torch."""
        return replace(self, factors={}) == replace(other, factors={})


def save(path: Path, new: Calibration) -> None:
    """Add a calibration to the file. Where its key is there already, phases measured anew replace their factors and
    the others stay. Raises InputError for a file that is something else, EnvironmentFault where the disk refuses."""
    stored = read(path) if path.exists() else []
    before = next((calibration.factors for calibration in stored if calibration.same_key(new)), {})
    merged = replace(new, factors=dict(sorted({**before, **new.factors}.items())))
    others = [calibration for calibration in stored if not calibration.same_key(new)]
    records = [asdict(calibration) for calibration in (*others, merged)]
    write_json(path, {"format": _FORMAT, "calibrations": records})


def read(path: Path) -> list[Calibration]:
    """All calibrations of a file. Raises InputError where it is missing or is something else."""
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
    """The factors of a file for this model, a GPU of this name and the torch installed; none without a file. Raises
    as `read` and `select` do."""
    return {} if path is None else select(read(path), model, gpu, metadata.version("torch")).factors


def select(stored: Sequence[Calibration], model: KnownModel, gpu: str, torch: str) -> Calibration:
    """The calibration of this model, of this torch and of the only GPU whose name contains `gpu` (in any case). Raises
    UsageError where there is none, or where several match."""
    label, parameters = model_label(model), model.sizes.parameters
    same_model = [one for one in stored if (one.model, one.parameters) == (label, parameters)]
    matching = [one for one in same_model if one.torch == torch and gpu.lower() in one.gpu.lower()]
    if len(matching) == 1:
        return matching[0]
    available = [f"{one.gpu} with torch {one.torch}" for one in matching or same_model]
    remedy = "name one with --gpu-type" if matching else "probe again, or leave the calibration out"
    raise UsageError(
        f"calibration: wanted one for {label} ({parameters:,} parameters), a GPU named {gpu or 'anything'}, torch "
        f"{torch}; the file has {', '.join(available) or 'nothing of this model'}; {remedy}"
    )


def model_label(model: KnownModel) -> str:
    """A model's name as calibrations have it."""
    return model.name.rstrip("/").rpartition("/")[2]
