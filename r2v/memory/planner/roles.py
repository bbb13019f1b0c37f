"""Roles: models and adapters on each GPU with their bytes, and the phases that each GPU runs.

Hierarchical training has six roles: actor and guidance (trained), the reference (the initial actor), a double critic,
its target, and optionally a value function for guidance. With adapters one frozen base serves as all three language
models; the reference is the base without adapters and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.planner.state import RoleMemory, frozen, sharded, trained
from r2v.memory.planner.training_job import Strategy, TrainingJob

PhaseKind = Literal["load", "generate", "read", "train"]


@dataclass(frozen=True, kw_only=True)
class ModelRole:
    """Model or adapter with its bytes on its device."""

    name: str
    state: RoleMemory


@dataclass(frozen=True, kw_only=True)
class MemoryPhase:
    """One phase of a job on one GPU, with `batch` sequences in total."""

    name: str
    role: str
    action: PhaseKind
    batch: int
    """Sequences (or pairs) of an update or a rollout, on this GPU."""
    tokens: int
    """Tokens of each sequence; a preference example has two sequences, a critic's one a state and an utterance."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, several GPUs with equal content, or the CPU."""

    name: str
    roles: tuple[ModelRole, ...]
    phases: tuple[MemoryPhase, ...] = ()


def devices(job: TrainingJob, strategy: Strategy, gpus: int, critics: Mapping[str, int]) -> tuple[Device, ...]:
    """Return the devices of a strategy, equal ones once. `critics`: parameters of the double critic and the value model
    (`r2v.memory.planner.phases.critic_parameters`)."""
    if job.stage != "hierarchical":
        return (_single(job, strategy, gpus),)
    critic, target, value = _critics(job, critics)
    language = _language(job, strategy, gpus)
    if strategy.placement == "split":
        pairs = gpus // 2
        first = Device(
            name=_names(gpus, 0),
            roles=(*language["actor"], *critic),
            phases=tuple(_phases(job, pairs, ("actor", "critic", "reference"))),
        )
        second = Device(
            name=_names(gpus, 1),
            roles=(*language["guidance"], *value),
            phases=tuple(_phases(job, pairs, ("guidance", "value"))),
        )
        return first, second, Device(name="cpu", roles=(*language["reference"], *target))
    offloaded = (*language["reference"], *target)
    roles = (*language["actor"], *language["guidance"], *critic, *value, *(() if strategy.offload else offloaded))
    names = ("actor", "guidance", "critic", "value", *(() if strategy.offload else ("reference",)))
    device = Device(name=_names(gpus), roles=roles, phases=tuple(_phases(job, gpus, names)))
    return (device, Device(name="cpu", roles=offloaded)) if strategy.offload else (device,)


def whole_state(job: TrainingJob, critics: Mapping[str, int]) -> float:
    """Return the bytes of all roles' training state as separate, unsharded copies on one GPU: the naive baseline."""
    strategy = Strategy(placement="shared" if job.lora_rank and job.stage == "hierarchical" else "full")
    return sum(role.state.total for device in devices(job, strategy, 1, critics) for role in device.roles)


def _names(gpus: int, half: int | None = None) -> str:
    chosen = [str(at) for at in range(gpus) if half is None or at % 2 == half]
    return f"gpu {','.join(chosen)}" if len(chosen) < 4 else f"gpu {chosen[0]}-{chosen[-1]}"


def _critics(
    job: TrainingJob, parameters: Mapping[str, int]
) -> tuple[tuple[ModelRole, ...], tuple[ModelRole, ...], tuple[ModelRole, ...]]:
    """Return critic, target and value function, all in float32: Polyak averaging with a small tau changes a bfloat16
    target by less than half its last digit, so rounding would undo it."""
    if job.critic is None:
        return (), (), ()
    critic = ModelRole(name="critic", state=trained(parameters["critic"], width=4, optimizer=job.optimizer))
    target = ModelRole(name="target", state=RoleMemory(weights=4 * parameters["critic"]))
    if not job.value:
        return (critic,), (target,), ()
    value = ModelRole(name="value", state=trained(parameters["value"], width=4, optimizer=job.optimizer))
    return (critic,), (target,), (value,)


def _language(job: TrainingJob, strategy: Strategy, gpus: int) -> dict[str, tuple[ModelRole, ...]]:
    if job.lora_rank == 0:
        state = trained(job.model.sizes.parameters, width=job.trained_width, optimizer=job.optimizer)
        ranks = gpus // 2 if strategy.placement == "split" else gpus
        own = sharded(state, job.model.sizes, strategy.shards, ranks, job.computed_width)
        still = frozen(job.model.sizes, job.base_width)
        if strategy.shards in ("zero3", "fsdp") and not strategy.offload:
            still = replace(still, weights=still.weights / ranks)
        return {
            "actor": (ModelRole(name="actor", state=own),),
            "guidance": (ModelRole(name="guidance", state=own),),
            "reference": (ModelRole(name="reference", state=still),),
        }
    base = frozen(job.model.sizes, job.base_width, four_bit=job.four_bit)
    adapter = _adapter(job, 1 if strategy.placement == "split" else gpus)
    copy = RoleMemory(weights=adapter.weights)
    if strategy.placement == "shared":
        return {
            "actor": (ModelRole(name="base", state=base), ModelRole(name="actor", state=adapter)),
            "guidance": (ModelRole(name="guidance", state=adapter),),
            "reference": (),
        }
    if strategy.placement == "split":
        return {
            "actor": (
                ModelRole(name="base", state=base),
                ModelRole(name="actor", state=adapter),
                ModelRole(name="guidance", state=copy),
            ),
            "guidance": (
                ModelRole(name="base", state=base),
                ModelRole(name="guidance", state=adapter),
                ModelRole(name="actor", state=copy),
            ),
            "reference": (),
        }
    return {
        name: (ModelRole(name=f"{name} base", state=base), *((ModelRole(name=name, state=adapter),) if train else ()))
        for name, train in (("actor", True), ("guidance", True), ("reference", False))
    }


def _adapter(job: TrainingJob, ranks: int) -> RoleMemory:
    state = trained(job.lora_rank * job.model.sizes.adapters, width=job.trained_width, optimizer=job.optimizer)
    return replace(state, gathered=state.gradients) if ranks > 1 else state


def _phases(job: TrainingJob, gpus: int, names: tuple[str, ...]) -> Iterator[MemoryPhase]:
    """Yield the phases of a GPU with these roles and its share of the rows."""
    yield from _loading(job)
    episodes, batch = _share(job.episodes, gpus), _share(job.batch, gpus)
    for name, count in (("actor", episodes), ("guidance", episodes * job.hints)):
        if name in names:
            phase = f"rollout, {name}"
            yield MemoryPhase(name=phase, role=name, action="generate", batch=count, tokens=job.tokens)
    if "reference" in names:
        yield MemoryPhase(name="reference", role="reference", action="read", batch=batch, tokens=job.tokens)
    for name in ("critic", "value"):
        if name in names and job.critic is not None and (name == "critic" or job.value):
            yield MemoryPhase(name=name, role=name, action="train", batch=batch, tokens=job.critic_tokens)
    for name in ("actor", "guidance"):
        if name in names:
            yield MemoryPhase(name=name, role=name, action="train", batch=batch, tokens=job.tokens)


def _loading(job: TrainingJob) -> Iterator[MemoryPhase]:
    """Yield the only loading phase that can need more than training: the embedding of a packed 4-bit base is cast to
    float32 while the original is live (peft.prepare_model_for_kbit_training).

    Others cannot: an optimizer's first step is like every step, other weights are loaded one tensor at a time, a
    checkpoint of sharded weights gathers one tensor where training gathers two layers, and adapters are sent after
    gradients of their size are freed.
    """
    if job.four_bit:
        yield MemoryPhase(name="load", role="base", action="load", batch=1, tokens=job.tokens)


def _share(count: int, gpus: int) -> int:
    return -(-count // gpus)


def _single(job: TrainingJob, strategy: Strategy, gpus: int) -> Device:
    """Return the device of BC, DPO or the verifier: one model, and for DPO a reference, frozen if weights are
    trained."""
    full, sizes = job.lora_rank == 0, job.model.sizes
    if full:
        state = trained(sizes.parameters, width=job.trained_width, optimizer=job.optimizer, embedding=sizes.embedding)
        roles = [ModelRole(name="policy", state=sharded(state, sizes, strategy.shards, gpus, job.computed_width))]
    else:
        roles = [
            ModelRole(name="base", state=frozen(sizes, job.base_width, four_bit=job.four_bit)),
            ModelRole(name="policy", state=_adapter(job, gpus)),
        ]
    if job.stage == "preference":  # the reference of adapters is their frozen copy (TRL's "ref" adapter)
        copy = frozen(sizes, job.base_width) if full else RoleMemory(weights=roles[-1].state.weights)
        roles.append(ModelRole(name="reference", state=copy))
    phase = MemoryPhase(
        name="dpo" if job.stage == "preference" else job.stage,
        role="policy",
        action="train",
        batch=_share(job.batch, gpus),
        tokens=job.tokens,
    )
    return Device(name=_names(gpus), roles=tuple(roles), phases=(*_loading(job), phase))
