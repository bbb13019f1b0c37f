"""Who takes part: actor and guidance, the reference they are kept near, a critic with its slow copy, a value function.

    roles = build_roles(config.policy, config.hierarchical, config.seed)
    with roles.using("actor") as model:
        loss = ...of_completions(model, rows)...
        loss.backward()
    roles.parameters("actor")      # what an optimizer is given

A role is asked for by name, wherever it stands and whatever it shares. In `shared`, one frozen base serves as three
language models: `using` puts the right adapter on and holds the base until the block ends. Where the models lie in
parts (`r2v.hrl.parallel.sharding`), they learn so, and speak and are read within `together`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import InputError
from r2v.hrl.algorithm.critic import DoubleCritic, TargetCritic
from r2v.hrl.models.bases import ACTOR, GUIDANCE, Base, load_base, with_adapters
from r2v.hrl.models.encoders import Reader, ValueModel, build_critic, build_reader, build_value
from r2v.hrl.parallel.placement import Devices, Placement, devices_of, placement_of
from r2v.hrl.parallel.sharding import Sharded, check, collected, mesh_of, put, shape_of
from r2v.hrl.parallel.zero import Zero
from r2v.policy.load import Loaded, device_of

if TYPE_CHECKING:
    from r2v.hrl.training.optimizer_step import Part

Speaking = Literal["actor", "guidance"]
Language = Literal["actor", "guidance", "reference"]
Learning = Literal["actor", "guidance", "critic", "value"]
Kept = Literal["actor", "guidance", "critic", "value", "target"]
Bodies = Mapping[Language, tuple[Base | Sharded | Zero, str | None]]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """All roles of one process. Build them with `build_roles`."""

    placement: Placement
    devices: Devices
    tokenizer: Any
    bodies: Bodies
    """Each language model: a base, and the adapter that it has on in this role."""
    critic: DoubleCritic
    target: TargetCritic
    value: ValueModel | None
    reader: Reader
    name: str
    """Of the model they started from."""
    moved: bool
    """They started from other weights than the model of that name has."""

    @contextmanager
    def using(self, role: Language) -> Iterator[Any]:
        """The role's model, in evaluation mode, held until the block ends: forward and backward belong into it."""
        base, adapter = self.bodies[role]
        with base.wearing(adapter) as model:
            yield model

    @property
    def in_parts(self) -> bool:
        """Whether each rank holds a part of the language models."""
        return not isinstance(self.bodies["actor"][0], Base)

    def engine(self, role: Learning) -> Zero | None:
        """What steps the role itself, where DeepSpeed does."""
        base = self.bodies[role][0] if role in ("actor", "guidance") else None
        return base if isinstance(base, Zero) else None

    @contextmanager
    def together(self, *roles: Language) -> Iterator[None]:
        """Whoever speaks or is only read does so in this block; nobody learns in it. Models in parts are whole in it,
        and all ranks must come to it."""
        with ExitStack() as stack:
            for base in dict.fromkeys(self.bodies[role][0] for role in roles):
                if not isinstance(base, Base):
                    stack.enter_context(base.together())
            yield

    def through(self, role: Speaking, part: Part) -> Part:
        """A part of a loss made with the role's model, as an update is to call it."""
        base, _ = self.bodies[role]
        return part if isinstance(base, Base) else base.through(part)

    def trained(self, role: Kept) -> dict[str, Tensor]:
        """The tensors that make the role what it is, by names that are the same in every placement."""
        if role in ("actor", "guidance"):
            base, adapter = self.bodies[role]
            return dict(base.trained(adapter))
        if role == "target":
            return dict(self.target.critic.named_parameters())
        module = self.critic if role == "critic" else self.value
        return {} if module is None else dict(module.named_parameters())

    def parameters(self, role: Learning) -> list[Tensor]:
        """What an optimizer trains of this role; nothing where the configuration has no such role."""
        return list(self.trained(role).values())

    def device(self, role: str) -> str:
        """Where the role stands, in torch's words."""
        where: str = getattr(self.devices, role)
        return where

    def state(self, role: Kept, here: bool = True) -> dict[str, Tensor]:
        """A whole copy, on the CPU, of what was trained. All ranks must ask where that is in parts; those that do not
        want it `here` get empty tensors."""
        return {name: collected(tensor, here) for name, tensor in self.trained(role).items()}

    @torch.no_grad()
    def load(self, role: Kept, state: Mapping[str, Tensor]) -> None:
        """Be what `state` was taken of, under whatever placement. Raises InputError where it is of another model."""
        own = self.trained(role)
        if {n: shape_of(t) for n, t in own.items()} != {n: shape_of(t) for n, t in state.items()}:
            raise InputError(
                f"{role}: a state of {len(state)} tensors does not fit the {len(own)} of this model; take "
                "a checkpoint of the same policy and critic, or start anew"
            )
        for name, tensor in own.items():
            put(tensor, state[name])
        if role in ("actor", "guidance") and (engine := self.engine(role)) is not None:
            engine.refresh()

    def read(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """What critic and value function read of a policy's texts: `Reader.rows`."""
        return self.reader.rows(texts)

    def actor_as_policy(self) -> Loaded:
        """The actor as `r2v.policy.export.export` writes it and `load_policy` reads it: an adapter, or all weights
        where they were trained, or where the base is no longer that of the model's name (the adapter merged). Where
        it is in parts all ranks must ask the first time, and it learns no more: a `Trainer` that has run has asked."""
        base, adapter = self.bodies["actor"]
        if not isinstance(base, Base):
            base = base.put_together()
        loaded = Loaded(model=base.model, tokenizer=self.tokenizer, name=self.name)
        if adapter is None or not self.moved:
            return loaded
        with base.wearing(adapter):
            model = copy.deepcopy(base.model)
        width = torch.promote_types(model.dtype, torch.float32)
        return replace(loaded, model=model.to(width).merge_and_unload(adapter_names=[adapter]))


def build_roles(
    policy: PolicyConfig, h: HierarchicalConfig, seed: int, weights: Path | None = None, devices: Devices | None = None
) -> Roles:
    """All roles, where `h.placement` puts them; `devices` overrides where that is. Both policies start from
    `policy.model_name`, or from exported `weights`.

    Raises UsageError where the placement, or how the policy is to be trained, cannot be.
    """
    own = device_of(policy)
    gpus = None if devices is not None else _gpus(own)
    placement = placement_of(h.placement, policy.lora_r, gpus, distributed.ranks())
    devices = devices or devices_of(placement, own, h.offload)
    if own == "cpu":
        torch.set_num_threads(1)
    first = load_base(policy, weights, devices.actor)
    check(h, placement, first.model, own)
    bodies = _shared(policy, first, seed) if placement == "shared" else _copies(policy, weights, first, seed, devices)
    if h.shards != "none" and distributed.ranks() > 1:
        bodies = _in_parts(bodies, devices.actor) if h.shards == "fsdp" else _in_engines(bodies, h, devices.actor)
    vocabulary = max(len(first.tokenizer), first.model.get_input_embeddings().num_embeddings)
    critic = build_critic(h.critic, vocabulary, seed, devices.critic)
    value = None
    if h.guidance.enabled and h.guidance.baseline == "value":
        value = build_value(h.critic, vocabulary, seed, devices.value)
    return Roles(
        placement=placement,
        devices=devices,
        tokenizer=first.tokenizer,
        bodies=bodies,
        critic=critic,
        target=TargetCritic(critic, h.critic.tau, devices.target),
        value=value,
        reader=build_reader(h.critic, first.tokenizer),
        name=first.name,
        moved=weights is not None,
    )


def _gpus(device: str) -> int:
    """GPUs of this machine that its processes may use together."""
    if not device.startswith("cuda"):
        return 0
    alone = ":" in device and distributed.ranks() == 1
    return 1 if alone else torch.cuda.device_count()


def _shared(policy: PolicyConfig, loaded: Loaded, seed: int) -> Bodies:
    base = Base(with_adapters(policy, loaded.model, {ACTOR: "actor", GUIDANCE: "guidance"}, seed))
    return {"actor": (base, ACTOR), "guidance": (base, GUIDANCE), "reference": (base, None)}


def _copies(policy: PolicyConfig, weights: Path | None, first: Loaded, seed: int, devices: Devices) -> Bodies:
    """Three models. Those trained have an adapter each, or learn all of their weights."""
    dtype = first.model.dtype
    copies = {"actor": first.model, "guidance": load_base(policy, weights, devices.guidance, dtype).model}
    bodies: dict[Language, tuple[Base, str | None]] = {
        "reference": (Base(load_base(policy, weights, devices.reference, dtype).model), None)
    }
    roles: tuple[Speaking, ...] = ("actor", "guidance")
    for role in roles:
        if policy.lora_r > 0:
            bodies[role] = Base(with_adapters(policy, copies[role], {ACTOR: role}, seed)), ACTOR
        else:
            bodies[role] = Base(copies[role].requires_grad_(True)), None
    return bodies


def _in_parts(bodies: Bodies, device: str) -> Bodies:
    """The same with every base cut into parts, one for each rank."""
    mesh, cut = mesh_of(device), dict[int, Sharded]()
    found: dict[Language, tuple[Base | Sharded | Zero, str | None]] = {}
    for role, (base, adapter) in bodies.items():
        if id(base) not in cut:
            cut[id(base)] = Sharded(base.model, mesh)
        found[role] = cut[id(base)], adapter
    return found


def _in_engines(bodies: Bodies, h: HierarchicalConfig, device: str) -> Bodies:
    """The same with an engine of DeepSpeed's for each of those that learn. The reference learns nothing: it lies whole
    where the others do (zero2), else in parts as of FSDP2."""
    found, stage = dict(bodies), int(h.shards.removeprefix("zero"))
    rates: dict[Speaking, float] = {"actor": h.lr, "guidance": h.guidance_lr}
    for role, lr in rates.items():
        base, adapter = bodies[role]
        if role == "actor" or h.guidance.enabled:
            found[role] = Zero(base.model, adapter, stage=stage, lr=lr, clip=h.grad_clip, device=device), adapter
    if stage == 3:
        base, adapter = bodies["reference"]
        found["reference"] = Sharded(base.model, mesh_of(device)), adapter
    return found
