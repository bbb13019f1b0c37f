"""Measured times of a stage: of an earlier run here, scaled to the planned work.

An estimate is wrong by an unknown factor, but by nearly the same one for two runs of a stage with one model on one type
of machine. So if such a run was recorded (`r2v.storage.durations`), the time is the recorded one without its start,
times the ratio of both estimates, plus the start. The run is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config, identity, load_recorded
from r2v.errors import R2VError
from r2v.storage.durations import CPU, Duration, recorded
from r2v.storage.integrity import CONFIGURATION
from r2v.storage.paths import ARTIFACTS

_FAR = 100.0
"""Largest ratio of work, either way, at which an earlier run is scaled: beyond it fixed costs dominate one of them."""


_START = 6.0
"""Fixed seconds of a run, at most half of it: imports (torch, transformers, peft and trl: 6 s of a CPU, measured), and
loading of models."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A time with the run that it was scaled from."""

    seconds: float
    run: Duration
    ratio: float
    """Planned work over that run's, by the estimates of both."""
    factor: float
    """The time over the estimate of the planned work."""

    def __str__(self) -> str:
        run = self.run
        machine = f"{run.cpus} CPUs" if run.device == CPU else run.device
        scaled = "" if self.ratio == 1 else f", times {self.ratio:.3g} for the work planned here"
        return f"measured in {run.job}-{run.fingerprint} ({run.seconds:.0f} s on {machine}{scaled})"


def measured_time(
    job: str,
    config: Config,
    now: float,
    then: Callable[[Config, Duration], float],
    *,
    gpu: str | None,
    root: Path,
    published: bool = True,
) -> MeasuredTime | None:
    """Return a job's time, scaled from the recorded run nearest in size, of this benchmark, model and kind of machine.

    now: estimate of the planned work, seconds. then: estimate of a run's work, by its configuration. gpu: part of the
    GPU's name, "" for any; CPU for a machine without; None for any machine, where no GPU has work. published: false for
    a stage of an ablation, for which runs of ablations come first.
    """
    times = []
    for run in recorded(root, job):
        if not _on_such_a_machine(run.device, gpu) or run.published < published:
            continue
        try:
            earlier = load_recorded(root / ARTIFACTS / f"{job}-{run.fingerprint}" / CONFIGURATION)
        except R2VError:
            continue  # its artifact was cleaned up, or is of another version
        if identity(earlier.env) != identity(config.env) or earlier.policy.model_name != config.policy.model_name:
            continue
        ratio = now / before if (before := then(earlier, run)) else float("nan")
        if 1 / _FAR <= ratio <= _FAR:
            start = min(_START, run.seconds / 2)
            seconds = start + (run.seconds - start) * ratio
            times.append(MeasuredTime(seconds=seconds, run=run, ratio=ratio, factor=seconds / now))
    return min(times, key=lambda time: (time.run.published != published, abs(math.log(time.ratio))), default=None)


def _on_such_a_machine(device: str, gpu: str | None) -> bool:
    if gpu is None or CPU in (gpu, device):
        return gpu in (None, device)
    return gpu.lower() in device.lower()
