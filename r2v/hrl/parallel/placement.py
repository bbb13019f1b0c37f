"""Placement: the device of each role. It affects memory and parallelism, never results.

    shared    one frozen base; actor and guidance are adapters on it, the reference is the base with adapters off
    full      separate copies, all on one device (`offload`: reference and target on the CPU)
    split     actor and critic on the first GPU, guidance and value on the second, reference and target on the CPU

The trained weights are adapters, or all weights if `policy.lora_r` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from r2v.errors import UsageError
from r2v.memory.planner.training_job import Placement

_GPUS = 2
"""GPUs of a process in `split`."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices of the roles in torch's notation, such as cpu or cuda:0. In `shared`, actor, guidance and reference are
    one model, on the actor's device."""

    actor: str
    guidance: str
    reference: str
    critic: str
    target: str
    value: str

    @classmethod
    def all_on(cls, device: str) -> Devices:
        """Return devices with every role on one device."""
        return cls(actor=device, guidance=device, reference=device, critic=device, target=device, value=device)


def placement_of(requested: str, lora_r: int, gpus: int | None, ranks: int = 1) -> Placement:
    """Return the `requested` placement (`hierarchical.placement`); for `auto` the one for the trained weights.

    `gpus`: number that `ranks` processes on this machine may use together; None for explicit devices. Raises UsageError
    if the placement is impossible with these.
    """
    if requested == "auto":
        return "shared" if lora_r > 0 else "full"
    if requested == "shared" and lora_r == 0:
        raise UsageError(
            "hierarchical.placement=shared: needs adapters on the one base, but policy.lora_r=0 trains "
            "all of its weights; set policy.lora_r (16 is a start), or hierarchical.placement=full"
        )
    if requested == "split" and gpus is not None:
        _check_split(gpus, ranks)
    return cast(Placement, requested)


def _check_split(gpus: int, ranks: int) -> None:
    if gpus < _GPUS or gpus % _GPUS:
        raise UsageError(
            f"hierarchical.placement=split: takes {_GPUS} GPUs for each process, but {gpus} "
            f"{'is' if gpus == 1 else 'are'} visible here; give an even number of them "
            "(CUDA_VISIBLE_DEVICES, policy.device=auto), or set hierarchical.placement=auto"
        )
    if gpus < _GPUS * ranks:
        raise UsageError(
            f"hierarchical.placement=split: {ranks} processes take {_GPUS * ranks} GPUs, but {gpus} are "
            f"visible here; set training.ranks={gpus // _GPUS}, or hierarchical.placement=auto"
        )


def split_ranks(gpus: int) -> int:
    """Return the number of processes for GPUs in `split`, one per pair; at least 1."""
    return max(1, gpus // _GPUS)


def first_device(placement: str, device: str) -> str:
    """Return the device for communication of a process with the device `device`: in `split` the first of its pair of
    GPUs, so that no two processes share one."""
    return devices_of("split", device).actor if placement == "split" and device.startswith("cuda") else device


def devices_of(placement: Placement, device: str, offload: bool = False) -> Devices:
    """Return the devices of the roles of a process with the device `device`, whose number counts pairs of GPUs in
    `split`. Raises UsageError for an `offload` (`hierarchical.offload`) without effect."""
    if offload and placement == "shared":
        raise UsageError(
            "hierarchical.offload=true: with placement=shared the reference is the base itself and stands "
            "where the actor does; set hierarchical.placement=full, or offload=false"
        )
    if placement != "split":
        devices = Devices.all_on(device)
        return replace(devices, reference="cpu", target="cpu") if offload else devices
    first = _GPUS * int(device.partition(":")[2] or 0)
    pair = (f"cuda:{first}", f"cuda:{first + 1}")
    return Devices(actor=pair[0], critic=pair[0], guidance=pair[1], value=pair[1], reference="cpu", target="cpu")
