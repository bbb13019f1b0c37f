"""Who stands on which GPU, with how many bytes, and what each GPU does: one `Device` for each kind of GPU in use.

Hierarchical training has six roles: actor and guidance (trained), the reference (the actor as it was), a double
critic, its target, and where wanted a value function for guidance. With adapters one frozen base serves as all
three language models, and the reference is the base with adapters off: it weighs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.planner.state import State, frozen, sharded, trained
from r2v.memory.planner.work import Setting, Work
from r2v.memory.shapes import Shape, critic_heads, score_head, value_head

Action = Literal["load", "generate", "read", "train"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model or an adapter, and its bytes where it stands."""

    name: str
    state: State


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One kind of work on one GPU: `rows` sequences in all, as many at a time as fit."""

    name: str
    role: str
    action: Action
    shape: Shape
    full: bool
    """All of its weights are trained (a critic always is)."""
    rows: int
    tokens: int
    texts: int = 1
    """Sequences that one row makes: two for a pair, or for a critic's state and utterance."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, or several that hold the same; or the CPU."""

    name: str
    roles: tuple[Role, ...]
    phases: tuple[Phase, ...] = ()


def devices(work: Work, setting: Setting, gpus: int) -> tuple[Device, ...]:
    """All kinds of devices that the setting uses."""
    if work.stage != "hierarchical":
        return (_single(work, setting, gpus),)
    critic, target, value = _critics(work)
    language = _language(work, setting, gpus)
    if setting.placement == "split":
        pairs = gpus // 2
        first = Device(
            name=_names(gpus, 0),
            roles=(*language["actor"], *critic),
            phases=tuple(_phases(work, pairs, ("actor", "critic", "reference"))),
        )
        second = Device(
            name=_names(gpus, 1),
            roles=(*language["guidance"], *value),
            phases=tuple(_phases(work, pairs, ("guidance", "value"))),
        )
        return first, second, Device(name="cpu", roles=(*language["reference"], *target))
    aside = (*language["reference"], *target)
    roles = (*language["actor"], *language["guidance"], *critic, *value, *(() if setting.offload else aside))
    names = ("actor", "guidance", "critic", "value", *(() if setting.offload else ("reference",)))
    device = Device(name=_names(gpus), roles=roles, phases=tuple(_phases(work, gpus, names)))
    return (device, Device(name="cpu", roles=aside)) if setting.offload else (device,)


def whole_state(work: Work) -> float:
    """Bytes of training state of all roles as separate copies on one GPU, unsharded: what a plan has to beat."""
    setting = Setting(placement="shared" if work.lora_rank and work.stage == "hierarchical" else "full")
    return sum(role.state.total for device in devices(work, setting, 1) for role in device.roles)


def _names(gpus: int, half: int | None = None) -> str:
    chosen = [str(at) for at in range(gpus) if half is None or at % 2 == half]
    return f"gpu {','.join(chosen)}" if len(chosen) < 4 else f"gpu {chosen[0]}-{chosen[-1]}"


def _critics(work: Work) -> tuple[tuple[Role, ...], tuple[Role, ...], tuple[Role, ...]]:
    """Critic, target and value function. All float32: a bfloat16 target stands still (facts 5.9, test 9)."""
    if work.critic is None:
        return (), (), ()
    double, single = critic_shape(work.critic), value_shape(work.critic)
    critic = Role(name="critic", state=trained(double.parameters, width=4, optimizer=work.optimizer))
    value = Role(name="value", state=trained(single.parameters, width=4, optimizer=work.optimizer))
    return (critic,), (Role(name="target", state=frozen(double, 4)),), (value,) if work.value else ()


def critic_shape(backbone: Shape) -> Shape:
    """The double critic over a backbone."""
    return replace(backbone, heads_on_top=critic_heads(backbone.hidden))


def value_shape(backbone: Shape) -> Shape:
    """A value function over a backbone."""
    return replace(backbone, heads_on_top=value_head(backbone.hidden))


def _language(work: Work, setting: Setting, gpus: int) -> dict[str, tuple[Role, ...]]:
    if work.lora_rank == 0:
        state = trained(work.model.parameters, width=work.trained_width, optimizer=work.optimizer)
        ranks = gpus // 2 if setting.placement == "split" else gpus
        own = sharded(state, work.model, setting.shards, ranks, work.computed_width)
        still = frozen(work.model, work.base_width)
        if setting.shards in ("zero3", "fsdp") and not setting.offload:
            still = replace(still, weights=still.weights / ranks)
        return {
            "actor": (Role(name="actor", state=own),),
            "guidance": (Role(name="guidance", state=own),),
            "reference": (Role(name="reference", state=still),),
        }
    base = frozen(work.model, work.base_width, four_bit=work.four_bit)
    adapter = _adapter(work, 1 if setting.placement == "split" else gpus)
    mirror = State(weights=adapter.weights)
    if setting.placement == "shared":
        return {
            "actor": (Role(name="base", state=base), Role(name="actor", state=adapter)),
            "guidance": (Role(name="guidance", state=adapter),),
            "reference": (),
        }
    if setting.placement == "split":
        return {
            "actor": (
                Role(name="base", state=base),
                Role(name="actor", state=adapter),
                Role(name="guidance", state=mirror),
            ),
            "guidance": (
                Role(name="base", state=base),
                Role(name="guidance", state=adapter),
                Role(name="actor", state=mirror),
            ),
            "reference": (),
        }
    return {
        name: (Role(name=f"{name} base", state=base), *((Role(name=name, state=adapter),) if train else ()))
        for name, train in (("actor", True), ("guidance", True), ("reference", False))
    }


def _adapter(work: Work, ranks: int) -> State:
    state = trained(work.model.lora_parameters(work.lora_rank), width=work.trained_width, optimizer=work.optimizer)
    return replace(state, gathered=state.gradients) if ranks > 1 else state


def _phases(work: Work, gpus: int, names: tuple[str, ...]) -> Iterator[Phase]:
    """What a GPU does with these roles, its share of the rows."""
    yield from _loading(work)
    episodes, rows, full = _share(work.episodes, gpus), _share(work.batch, gpus), work.lora_rank == 0
    for name, count in (("actor", episodes), ("guidance", episodes * work.hints)):
        if name in names:
            yield Phase(
                name=f"rollout, {name}",
                role=name,
                action="generate",
                shape=work.model,
                full=full,
                rows=count,
                tokens=work.tokens,
            )
    if "reference" in names:
        yield Phase(
            name="reference",
            role="reference",
            action="read",
            shape=work.model,
            full=full,
            rows=rows,
            tokens=work.tokens,
        )
    for name in ("critic", "value"):
        if name in names and work.critic is not None and (name == "critic" or work.value):
            shape = critic_shape(work.critic) if name == "critic" else value_shape(work.critic)
            yield Phase(
                name=name,
                role=name,
                action="train",
                shape=shape,
                full=True,
                rows=rows,
                tokens=work.critic_tokens,
                texts=2 if name == "critic" else 1,
            )
    for name in ("actor", "guidance"):
        if name in names:
            yield Phase(
                name=name, role=name, action="train", shape=work.model, full=full, rows=rows, tokens=work.tokens
            )


def _loading(work: Work) -> Iterator[Phase]:
    """The one transition that can need more than training does: when a 4-bit base has been packed, its table is
    widened to float32, and for a moment both are there (peft.prepare_model_for_kbit_training). The others cannot: the
    first step of an optimizer is like every step, other weights are loaded a tensor at a time, a checkpoint of shared
    out weights gathers one tensor where training gathers two layers, and adapters are sent when gradients of their
    size have gone."""
    if work.four_bit:
        yield Phase(name="load", role="base", action="load", shape=work.model, full=False, rows=1, tokens=work.tokens)


def _share(count: int, gpus: int) -> int:
    return -(-count // gpus)


def _single(work: Work, setting: Setting, gpus: int) -> Device:
    """BC, DPO or the verifier: one model; DPO reads its reference too, a frozen copy where weights are trained."""
    full, shape = work.lora_rank == 0, work.model
    if work.stage == "verifier":
        shape = replace(shape, heads_on_top=score_head(shape.hidden))
    if full:
        state = trained(shape.parameters, width=work.trained_width, optimizer=work.optimizer)
        roles = [Role(name="policy", state=sharded(state, shape, setting.shards, gpus, work.computed_width))]
    else:
        roles = [
            Role(name="base", state=frozen(shape, work.base_width, four_bit=work.four_bit)),
            Role(name="policy", state=_adapter(work, gpus)),
        ]
    if work.stage == "preference":  # adapters have a frozen copy of themselves as reference (TRL's "ref" adapter)
        roles.append(
            Role(
                name="reference",
                state=frozen(shape, work.base_width) if full else State(weights=roles[-1].state.weights),
            )
        )
    rows, texts = _share(work.batch, gpus), 2 if work.stage == "preference" else 1
    name = {"bc": "bc", "preference": "dpo", "verifier": "verifier"}[work.stage]
    phases = [
        Phase(
            name=name, role="policy", action="train", shape=shape, full=full, rows=rows, tokens=work.tokens, texts=texts
        )
    ]
    if work.stage == "preference":
        phases.insert(
            0,
            Phase(
                name="reference",
                role="reference",
                action="read",
                shape=shape,
                full=full,
                rows=rows,
                tokens=work.tokens,
                texts=2,
            ),
        )
    return Device(name=_names(gpus), roles=tuple(roles), phases=(*_loading(work), *phases))
