"""Models of a measurement: real transformers and peft models of a chosen depth on meta or fake tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from r2v.memory.measurement import ENCODERS, MeasuredCase, ModelSizes
from r2v.memory.model_registry import ModelConfigValues

_BLOCK = 64
"""Number of nf4 weights that share a scale."""
_DEPTH_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DROPOUTS = ("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop")


def config_of(values: ModelConfigValues, depth: int | None = None) -> Any:
    """Return transformers' configuration, with `depth` layers if given: lists with an entry per layer are truncated."""
    from transformers import AutoConfig

    settings = {key: value for key, value in values.items() if key not in ("model_type", "dtype", "torch_dtype")}
    for section in (settings, settings.get("text_config")):
        if depth is not None and isinstance(section, dict):
            cut = _cut(section, depth)
            section.clear()
            section.update(cut)
    config = AutoConfig.for_model(str(values["model_type"]), **settings)
    for name in _DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _cut(section: Mapping[str, Any], depth: int) -> dict[str, Any]:
    names = [name for name in _DEPTH_KEYS if isinstance(section.get(name), int)]
    if not names:
        return dict(section)
    layers = section[names[0]]
    cut = {
        key: value[:depth] if isinstance(value, list) and len(value) == layers else value
        for key, value in section.items()
    }
    return cut | dict.fromkeys(names, depth)


def skeleton(config: Any, dtype: torch.dtype) -> Any:
    """Return the model on torch's meta device: a causal language model, or an encoder if its type has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModel, AutoModelForCausalLM

    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and config.model_type not in ENCODERS
    factory = AutoModelForCausalLM if causal else AutoModel
    with torch.device("meta"):
        return factory.from_config(config, attn_implementation=_attention(config, factory), dtype=dtype)


def _attention(config: Any, factory: Any) -> str:
    """Return "sdpa", or "eager" if the model caps its attention scores or has no sdpa."""
    text = config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None):
        return "eager"
    model = factory._model_mapping.get(type(config), None)
    model = model[0] if isinstance(model, (list, tuple)) else model
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Return the transformer's layers: the largest list of modules outside an image tower."""
    lists = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and not any(word in name for word in ("vision", "visual", "experts"))
    ]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no list of layers")
    return max(lists, key=lambda module: sum(p.numel() for p in module.parameters()))


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Sequence of the kinds of layers: `start` layers, then whole periods, then the beginning of one."""

    depth: int
    """Layers of the whole model."""
    start: int
    period: int

    @property
    def ends(self) -> int:
        """Number of last layers that are kept apart: a period and the incomplete one."""
        return self.period + (self.depth - self.start) % self.period

    @property
    def depths(self) -> tuple[int, ...]:
        """Two depths to measure and one to check, whole periods apart; only the whole model if it has too few
        layers."""
        first = self.start + self.period + self.ends
        if first + self.period >= self.depth:
            return (self.depth,)
        return first, first + self.period, min(first + 2 * self.period, self.depth)


@lru_cache(64)
def _studied(text: str) -> tuple[Pattern, ModelSizes]:
    config = config_of(json.loads(text))
    model = skeleton(config, torch.bfloat16)
    layers = layers_of(model)
    kinds = [_kind(layer, config.get_text_config(), number, len(layers)) for number, layer in enumerate(layers)]
    return _pattern(kinds), _sizes(model, layers, config.get_text_config())


def studied(values: ModelConfigValues) -> tuple[Pattern, ModelSizes]:
    """Return the pattern of a model's layers and its parameter counts, from the whole model on torch's meta device."""
    return _studied(json.dumps(values, sort_keys=True))


def _kind(layer: nn.Module, config: Any, number: int, depth: int) -> tuple[Any, ...]:
    """Return all properties that distinguish layers: modules, shapes of weights, entries in the configuration's
    lists."""
    modules = tuple((name, type(module).__name__) for name, module in layer.named_modules())
    weights = tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())
    entries = tuple(
        (key, str(value[number]))
        for key, value in sorted(vars(config).items())
        if isinstance(value, (list, tuple)) and len(value) == depth
    )
    return modules, weights, entries


def _pattern(kinds: list[Any]) -> Pattern:
    depth = len(kinds)
    candidates = (
        Pattern(depth=depth, start=total - period, period=period)
        for total in range(1, depth + 1)
        for period in range(1, total + 1)
    )
    return next(
        pattern
        for pattern in candidates
        if all(kinds[at] == kinds[at + pattern.period] for at in range(pattern.start, depth - pattern.period))
    )


def _sizes(model: Any, layers: nn.ModuleList, config: Any) -> ModelSizes:
    inside, unused, adapters = set[int](), 0, 0
    packed = 0
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            inside.add(id(module.weight))
            packed += module.weight.numel()
            adapters += module.in_features + module.out_features
    experts, sent = _experts(config)
    for name, weight in layers.named_parameters():
        if "experts" in name and weight.ndim == 3:
            # peft gives an expert's matrix adapters of rank r, and 2 r where gate and up are one parameter
            adapters += weight.shape[0] * sum(weight.shape[1:]) * (2 if "gate_up" in name else 1)
        if name.endswith(("gate.weight", "router.weight")) and id(weight) not in inside:
            adapters += sum(weight.shape)
        if "experts" in name and experts:
            unused += weight.numel() * (experts - sent) // experts
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    matrices = sum(weight.numel() for weight in layers.parameters() if weight.ndim > 1)
    return ModelSizes(
        parameters=sum(weight.numel() for weight in model.parameters()),
        embedding=table.numel(),
        layer=max(sum(weight.numel() for weight in layer.parameters()) for layer in layers),
        packed=packed,
        per_token=matrices - unused + (0 if head is None else head.weight.numel()),
        adapters=adapters,
        head=0 if head is None or head.weight is table else head.weight.numel(),
    )


def _experts(config: Any) -> tuple[int, int]:
    """Return the numbers of experts of a mixture layer, and of experts per token."""
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if count := getattr(config, name, None):
            return int(count), int(getattr(config, "num_experts_per_tok", None) or count)
    return 0, 0


def adapted(model: Any, case: MeasuredCase) -> Any:
    """Return the model with trainable adapters."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=case.rank,
        lora_alpha=2 * case.rank,
        target_modules="all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM" if model.get_output_embeddings() is not None else "FEATURE_EXTRACTION",
    )
    return get_peft_model(model, settings, low_cpu_mem_usage=True)


def materialize(model: nn.Module, adapters: torch.dtype | None = None) -> None:
    """Replace the tensors on meta, on which fused attention has no output shape, by random ones on the context's device
    (under fake mode: without data). Tied tensors stay tied. `adapters`: type of LoRA weights."""
    parameters: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                dtype = adapters if adapters is not None and "lora_" in path else old.dtype
                parameters.setdefault(id(old), nn.Parameter(_drawn(old, dtype), old.requires_grad))
                module._parameters[name] = parameters[id(old)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)


def _drawn(old: Tensor, dtype: torch.dtype) -> Tensor:
    tensor = torch.empty(old.shape, dtype=dtype)
    return tensor.normal_(0, 0.02) if dtype.is_floating_point else tensor.zero_()


class _PackedProduct(torch.autograd.Function):
    """Product with a packed matrix in bfloat16, unpacked in forward and again in backward, never saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: PackedLinear) -> Tensor:
        ctx.module = module
        return nn.functional.linear(x.bfloat16(), module.unpacked()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad.bfloat16() @ ctx.module.unpacked()).to(grad.dtype), None


class PackedLinear(nn.Linear):
    """Replacement of bitsandbytes' Linear4bit, whose kernels do not run on fake tensors: nf4 in half a byte per weight
    and a float32 scale per block. The output is copied, as peft does."""

    def __init__(self, old: nn.Linear) -> None:
        super().__init__(
            old.in_features, old.out_features, bias=old.bias is not None, device="meta", dtype=torch.float32
        )
        count = old.weight.numel()
        self.weight = nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)
        self.register_buffer("nibbles", torch.empty(count // 2, dtype=torch.uint8, device="meta"))
        self.register_buffer("scales", torch.empty(-(-count // _BLOCK), dtype=torch.float32, device="meta"))

    def unpacked(self) -> Tensor:
        """Return the matrix in bfloat16, the type of its products."""
        empty: Tensor = self.nibbles.new_empty(  # type: ignore[operator]
            self.out_features, self.in_features, dtype=torch.bfloat16
        )
        return empty

    def forward(self, x: Tensor) -> Tensor:
        """Return the product: (..., in_features) -> (..., out_features)."""
        product: Tensor = _PackedProduct.apply(x, self)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            product = product + self.bias
        return product.clone()


def pack(model: nn.Module) -> None:
    """Pack the linear modules of the layers; call it before adding adapters."""
    for parent in layers_of(model).modules():
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear:
                setattr(parent, name, PackedLinear(module))


def shared_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield the weights and the buffers of packed matrices: all persistent tensors of the model."""
    yield from model.parameters()
    for module in model.modules():
        if isinstance(module, PackedLinear):
            yield from module.buffers()
