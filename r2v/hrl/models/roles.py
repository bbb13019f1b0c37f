"""Roles of hierarchical training: actor, guidance, their reference, a critic with its target network, a value model.

    roles = build_roles(config.policy, config.hierarchical, config.seed)
    with roles.using("actor") as model:
        loss = ...completion_logprobs(model, batch)...
        loss.backward()
    roles.parameters("actor")      # for an optimizer

A role is used by name, independent of its device and of shared weights. In the placement `shared` one frozen base
serves as three language models: `using` activates the role's adapter and locks the base until the block ends. Sharded
models (`r2v.hrl.parallel.sharding`) are trained as shards, and generate and are read within `gathered`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import InputError
from r2v.hrl.algorithm.critic import DoubleCritic, TargetNetwork
from r2v.hrl.algorithm.logprobs import require_known_logits
from r2v.hrl.models.bases import load_base, with_adapters
from r2v.hrl.models.encoders import CriticTokenizer, ValueModel, build_critic, build_critic_tokenizer, build_value
from r2v.hrl.models.served import ServedRoles
from r2v.hrl.parallel.base_model import ACTOR, GUIDANCE, BaseModel
from r2v.hrl.parallel.placement import Devices, devices_of, placement_of
from r2v.hrl.parallel.sharded_tensors import TakeFn, copy_into, full_cpu_copy, full_shape
from r2v.hrl.parallel.sharding import ShardedModel, check_sharding, fsdp_sharded
from r2v.hrl.parallel.zero import ZeroEngine, zero_sharded
from r2v.hrl.types import LossFn
from r2v.llm.engines.client import Adapter
from r2v.memory.planner.state import WHOLE_WEIGHTS
from r2v.memory.planner.training_job import Placement
from r2v.policy.load import Loaded, device_of

GeneratingRole = Literal["actor", "guidance"]
LanguageRole = Literal["actor", "guidance", "reference"]
TrainedRole = Literal["actor", "guidance", "critic", "value"]
SavedRole = Literal["actor", "guidance", "critic", "value", "target"]
LanguageModels = Mapping[LanguageRole, tuple[BaseModel | ShardedModel, str | None]]


@dataclass(frozen=True, kw_only=True)
class Roles:
    """All roles of one process, built by `build_roles`."""

    placement: Placement
    devices: Devices
    tokenizer: Any
    language_models: LanguageModels
    """Role -> its base, and the adapter that is active in this role."""
    critic: DoubleCritic
    target: TargetNetwork
    value: ValueModel | None
    critic_tokenizer: CriticTokenizer
    name: str
    """Name of the initial model."""
    base: str
    """Its `base_sha256`; empty for exported whole weights."""
    from_weights: bool
    """True if the roles started from exported weights instead of those of the named model."""
    engines: Mapping[str, ZeroEngine] = field(default_factory=dict)
    """DeepSpeed engines of the trained language models, if any; they step by themselves."""
    served: ServedRoles | None = None
    """Serving engine that draws completions; None: these models draw them."""

    @contextmanager
    def using(self, role: LanguageRole) -> Iterator[Any]:
        """Yield the role's model, in evaluation mode, locked until the block ends. Forward and backward belong into
        it."""
        base, adapter = self.language_models[role]
        with base.use_adapter(adapter) as model:
            yield model

    def published(self, role: GeneratingRole) -> Adapter:
        """Return the role's adapter in the serving engine, published again if it has changed."""
        assert self.served is not None
        base, adapter = self.language_models[role]
        assert adapter is not None
        return self.served.publish(role, Loaded(model=base.model, tokenizer=self.tokenizer, name=self.name), adapter)

    @property
    def sharded(self) -> bool:
        """True if each rank holds a shard of the language models."""
        return not isinstance(self.language_models["actor"][0], BaseModel)

    @property
    def in_parts(self) -> bool:
        """True if FSDP shards the language models, so that each rank writes its own part of a checkpoint."""
        return self.sharded and not self.engines

    @contextmanager
    def gathered(self, *roles: LanguageRole) -> Iterator[None]:
        """Gather these roles, to generate or be read, until the block ends; no training in it. All ranks must enter
        it."""
        with ExitStack() as stack:
            for base in dict.fromkeys(self.language_models[role][0] for role in roles):
                if not isinstance(base, BaseModel):
                    stack.enter_context(base.gathered())
            yield

    def wrap_loss(self, role: GeneratingRole, loss_fn: LossFn) -> LossFn:
        """Return a loss function of the role's model in the form for an optimizer step."""
        base, _ = self.language_models[role]
        return loss_fn if isinstance(base, BaseModel) else base.wrap_loss(loss_fn)

    def trained(self, role: SavedRole) -> dict[str, Tensor]:
        """Return the role's trained tensors, by names that do not depend on the placement."""
        if role in ("actor", "guidance"):
            base, adapter = self.language_models[role]
            return dict(base.trained(adapter))
        if role == "target":
            return dict(self.target.critic.named_parameters())
        module = self.critic if role == "critic" else self.value
        return {} if module is None else dict(module.named_parameters())

    def parameters(self, role: TrainedRole) -> list[Tensor]:
        """Return the role's trained tensors; empty if the configuration has no such role."""
        return list(self.trained(role).values())

    def device(self, role: str) -> str:
        """Return the role's device, such as cpu or cuda:0."""
        device: str = getattr(self.devices, role)
        return device

    def state(self, role: SavedRole, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
        """Return the role's trained tensors, each converted by `take`. All ranks must call if they are sharded."""
        return {name: take(tensor) for name, tensor in self.trained(role).items()}

    @torch.no_grad()
    def load(self, role: SavedRole, state: Mapping[str, Tensor]) -> None:
        """Load a role's state, saved under any placement. Raises InputError for another model's state."""
        trained = self.trained(role)
        shapes = {name: full_shape(tensor) for name, tensor in trained.items()}
        if shapes != {name: full_shape(tensor) for name, tensor in state.items()}:
            raise InputError(
                f"{role}: a state of {len(state)} tensors does not fit the {len(trained)} of this model; take "
                "a checkpoint of the same policy and critic, or start anew"
            )
        for name, tensor in trained.items():
            copy_into(tensor, state[name])
        if role in self.engines:
            self.engines[role].refresh_masters()

    def encode_for_critic(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the policy's texts for critic and value model (`CriticTokenizer.encode_batch`)."""
        return self.critic_tokenizer.encode_batch(texts)

    def actor_as_policy(self) -> Loaded:
        """Return the actor for `r2v.policy.export.export`: an adapter, or all weights if all were trained or the roles
        started from exported weights (the adapter is then merged, because an adapter file can only name a base). If it
        is sharded, all ranks must make the first call, which ends its training: a finished `Trainer` has made it."""
        base, adapter = self.language_models["actor"]
        if not isinstance(base, BaseModel):
            base = base.gather()
        loaded = Loaded(model=base.model, tokenizer=self.tokenizer, name=self.name, base=self.base)
        if adapter is None or not self.from_weights:
            return loaded
        with base.use_adapter(adapter):
            model = copy.deepcopy(base.model)
        dtype = torch.promote_types(model.dtype, torch.float32)
        return replace(loaded, model=model.to(dtype).merge_and_unload(adapter_names=[adapter]))


def build_roles(
    policy: PolicyConfig, h: HierarchicalConfig, seed: int, weights: Path | None = None, devices: Devices | None = None
) -> Roles:
    """Build all roles, on the devices of `h.placement`, or on `devices`. Both policies start from `policy.model_name`,
    or from exported `weights`.

    Raises UsageError for an impossible placement or way of training the policy.
    """
    device = device_of(policy)
    gpus = None if devices is not None else _gpus(device)
    placement = placement_of(h.placement, policy.lora_r, gpus, distributed.ranks())
    devices = devices or devices_of(placement, device, h.offload)
    if device == "cpu":
        torch.set_num_threads(1)
    in_parts = h.shards == "fsdp" and distributed.ranks() > 1
    autocast = h.shards in WHOLE_WEIGHTS or distributed.ranks() == 1
    first = load_base(policy, weights, devices.actor, in_parts=in_parts, autocast=autocast)
    check_sharding(h, placement, first.model, device)
    if not in_parts or distributed.rank() == 0:  # other ranks have allocated memory, but no weights
        require_known_logits(first.model)
    if placement == "shared":
        language_models = _shared(policy, first, seed)
    else:
        language_models = _copies(policy, weights, first, seed, devices, in_parts, autocast)
    engines: dict[str, ZeroEngine] = {}
    if in_parts:
        language_models = _with_shards(language_models, devices.actor)
    elif h.shards != "none" and distributed.ranks() > 1:
        language_models, engines = _with_zero_engines(language_models, h, devices.actor)
    vocabulary = max(len(first.tokenizer), first.model.get_input_embeddings().num_embeddings)
    critic = build_critic(h.critic, vocabulary, seed, devices.critic)
    value = None
    if h.guidance.enabled and h.guidance.baseline == "value":
        value = build_value(h.critic, vocabulary, seed, devices.value)
    return Roles(
        placement=placement,
        devices=devices,
        tokenizer=first.tokenizer,
        language_models=language_models,
        critic=critic,
        target=TargetNetwork(critic, h.critic.tau, devices.target),
        value=value,
        critic_tokenizer=build_critic_tokenizer(h.critic, first.tokenizer),
        name=first.name,
        base=first.base,
        from_weights=weights is not None,
        engines=engines,
    )


def _gpus(device: str) -> int:
    """Return the number of this machine's GPUs that its processes may use together."""
    if not device.startswith("cuda"):
        return 0
    alone = ":" in device and distributed.ranks() == 1
    return 1 if alone else torch.cuda.device_count()


def _shared(policy: PolicyConfig, loaded: Loaded, seed: int) -> LanguageModels:
    base = BaseModel(with_adapters(policy, loaded.model, {ACTOR: "actor", GUIDANCE: "guidance"}, seed))
    return {"actor": (base, ACTOR), "guidance": (base, GUIDANCE), "reference": (base, None)}


def _copies(
    policy: PolicyConfig,
    weights: Path | None,
    first: Loaded,
    seed: int,
    devices: Devices,
    in_parts: bool,
    autocast: bool,
) -> LanguageModels:
    """Return three separate models. The two trained ones have an adapter each, or train all of their weights."""
    guidance, reference = (
        load_base(policy, weights, device, typed_for=devices.actor, in_parts=in_parts, autocast=autocast).model
        for device in (devices.guidance, devices.reference)
    )
    copies = {"actor": first.model, "guidance": guidance}
    language_models: dict[LanguageRole, tuple[BaseModel, str | None]] = {"reference": (BaseModel(reference), None)}
    roles: tuple[GeneratingRole, ...] = ("actor", "guidance")
    for role in roles:
        if policy.lora_r > 0:
            language_models[role] = BaseModel(with_adapters(policy, copies[role], {ACTOR: role}, seed)), ACTOR
        else:
            language_models[role] = BaseModel(copies[role].requires_grad_(True)), None
    return language_models


def _with_shards(language_models: LanguageModels, device: str) -> LanguageModels:
    """Return the models with every base sharded over the ranks; rank 0 has the weights."""
    bases = {id(base): base for base, _ in language_models.values()}
    sharded = {key: fsdp_sharded(base.model, device, from_rank0=True) for key, base in bases.items()}
    return {role: (sharded[id(base)], adapter) for role, (base, adapter) in language_models.items()}


def _with_zero_engines(
    language_models: LanguageModels, h: HierarchicalConfig, device: str
) -> tuple[LanguageModels, dict[str, ZeroEngine]]:
    """Return the models with a DeepSpeed engine for each trained one. The untrained reference stays whole (zero2), or
    is sharded by FSDP2 (zero3)."""
    sharded, engines, stage = dict(language_models), dict[str, ZeroEngine](), int(h.shards.removeprefix("zero"))
    rates: dict[GeneratingRole, float] = {"actor": h.lr, "guidance": h.guidance_lr}
    for role, lr in rates.items():
        base, adapter = language_models[role]
        if role == "actor" or h.guidance.enabled:
            model, engines[role] = zero_sharded(
                base.model, adapter, stage=stage, lr=lr, clip=h.grad_clip, device=device
            )
            sharded[role] = model, adapter
    if stage == 3:
        base, adapter = language_models["reference"]
        sharded["reference"] = fsdp_sharded(base.model, device), adapter
    return sharded, engines
