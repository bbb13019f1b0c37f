"""Placement: which device each role stands on. It changes nothing that is learned, only what fits and runs in parallel.

    shared    one frozen base; actor and guidance are adapters on it, the reference is the base with adapters off
    full      separate copies, all on one device (`offload`: reference and target on the CPU)
    split     actor and critic on the first GPU, guidance and value on the second, reference and target on the CPU

What is trained is decided by `policy.lora_r`: adapters, or with 0 all weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from r2v.errors import UsageError
from r2v.memory.planner.training_job import Placement

_GPUS = 2
"""GPUs that a process takes in `split`."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Devices of the roles, in torch's words: cpu, cuda:0. In `shared`, actor, guidance and reference are
    one model, where the actor stands."""

    actor: str
    guidance: str
    reference: str
    critic: str
    target: str
    value: str

    @classmethod
    def all_on(cls, device: str) -> Devices:
        """Every role on one device."""
        return cls(actor=device, guidance=device, reference=device, critic=device, target=device, value=device)


def placement_of(asked: str, lora_r: int, gpus: int | None, ranks: int = 1) -> Placement:
    """The placement asked for (`hierarchical.placement`), or for `auto` the one that fits what is trained.

    `gpus` are those that `ranks` processes on this machine may use together; None where the devices are chosen by
    hand. Raises UsageError where the placement cannot be had with these.
    """
    if asked == "auto":
        return "shared" if lora_r > 0 else "full"
    if asked == "shared" and lora_r == 0:
        raise UsageError(
            "hierarchical.placement=shared: needs adapters on the one base, but policy.lora_r=0 trains "
            "all of its weights; set policy.lora_r (16 is a start), or hierarchical.placement=full"
        )
    if asked == "split" and gpus is not None:
        _check_split(gpus, ranks)
    return cast(Placement, asked)


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
    """Return the number of processes that GPUs serve in `split`, a pair each; 1 where there are fewer."""
    return max(1, gpus // _GPUS)


def first_device(placement: str, device: str) -> str:
    """The device that a process whose own is `device` communicates on: in `split` the first of its pair of GPUs, so
    that no two processes have one in common."""
    return devices_of("split", device).actor if placement == "split" and device.startswith("cuda") else device


def devices_of(placement: Placement, device: str, offload: bool = False) -> Devices:
    """The roles' devices of a process whose own device is `device`. In `split` its number counts pairs of GPUs.
    Raises UsageError for an `offload` (`hierarchical.offload`) that would move nothing."""
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
