"""Measured times of a stage: of an earlier run here, scaled to what is planned now.

An estimate is wrong by a factor that nobody knows, but by nearly the same one for two runs of one stage with one model
on one kind of machine. So where such a run was recorded (`r2v.storage.durations`), the time is the recorded one, but
for its start, times the ratio of both estimates, and it is said of which run.
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
"""A run whose work is so many times smaller or larger says nothing: fixed costs are all of one of them."""


_START = 6.0
"""Seconds of a run, or half of a shorter one, that grow with no work: imports (torch, transformers, peft and trl: 6 s
of a CPU, measured), and the models that are loaded."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A time with the run that it goes by."""

    seconds: float
    run: Duration
    ratio: float
    """How much more is planned than that run did, by the estimate of both."""
    factor: float
    """The time, over the estimate of what is planned."""

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
    """The time of a job by the recorded run that is nearest in size; None where none of them is of this benchmark and
    model, or on such a machine.

    now: the estimate of what is planned, in seconds. then: of what a run did, by its configuration. gpu: what the
    machine's GPU has in its name, "": any; CPU: a machine without; None: any machine, for no GPU has work. published:
    false for a stage of an ablation, which goes by such runs first.
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
