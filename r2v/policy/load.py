"""Loading a policy by name: a bundled model, a local directory or a hub model, with LoRA adapters, in 4 bits.

A directory may hold a model or, as `r2v.policy.export` writes them, adapters alone, which are merged into their base.

    loaded = load_policy(config.policy)                              # the base model
    loaded = load_policy(config.policy, folder / "final")            # trained weights, to act with
    loaded = load_policy(config.policy, final, for_training=True)    # trained weights, to train on

While acting, a bundled model is float64 on a CPU: there its results do not depend on the batch. In
training it is float32 (hierarchical training, which acts while it learns, loads it for acting).
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from r2v import distributed
from r2v.config import PolicyConfig
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.log import logger
from r2v.memory.models import estimated, require_unquantized
from r2v.policy.precision import use_float64_layers
from r2v.policy.sharded_loading import room_for
from r2v.randomness import seed_of
from r2v.storage.model_identity import base_sha256, model_folder, require_base, weight_files
from r2v.storage.weights import (
    ADAPTERS,
    BUNDLED,
    adapters_alone,
    base_of,
    readable_model,
    require_all,
    require_tokenizer,
)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A causal language model (a PeftModel where it has adapters) with its tokenizer and its base's name."""

    model: Any
    tokenizer: Any
    name: str
    base: str = ""
    """The base's `base_sha256`, for the record of adapters; empty: whole weights, or a model that no name leads to."""


def load_policy(
    policy: PolicyConfig,
    weights: Path | None = None,
    *,
    for_training: bool = False,
    sharded: bool = False,
    seed: int = 0,
) -> Loaded:
    """Return the model of a configuration, with the weights exported in a folder where one is given.

    For training, LoRA adapters are added (`lora_r` > 0, drawn from `seed`) or an exported one is made trainable.
    Weights that FSDP will shard are read by rank 0 alone, onto its CPU (`r2v.policy.sharded_loading`), unless they are
    4-bit. Raises InputError where the model or the weights cannot be found, UsageError where the options contradict.
    """
    if weights is not None and not weights.is_dir():
        raise InputError(f"{weights}: no such folder of exported weights; run the stage that trains them first")
    adapted = weights is not None and (weights / ADAPTERS).exists()
    if weights is not None and for_training and adapted != (policy.lora_r > 0):
        kind = "adapters" if adapted else "full weights"
        raise UsageError(f"{weights}: holds {kind}, but policy.lora_r={policy.lora_r}; train both phases alike")
    source, base = weights, ""
    if source is None or adapted:
        source = model_folder(policy.model_name, policy.revision)
        base = base_sha256(policy.model_name, policy.revision, hash_weights=True)
    model = _model(policy, source, for_training, sharded)
    if weights is not None and adapted:
        require_base(weights, policy.model_name, base)
        model = put_adapters_on(model, weights, is_trainable=for_training)
    elif for_training and policy.lora_r > 0:
        model = _with_adapters(policy, model, seed, sharded)
    if not for_training:
        model = model.eval().requires_grad_(False)
        use_float64_layers(model)
    tokenizer = _tokenizer(weights or source)
    _require_embedded(_cannot(weights or source), tokenizer, model)
    return Loaded(model=model, tokenizer=tokenizer, name=policy.model_name, base=base)


def load_tokenizer(policy: PolicyConfig, weights: Path | None = None) -> Any:
    """Return the tokenizer of a configuration, or the one exported with weights, without the model."""
    return _tokenizer(weights or model_folder(policy.model_name, policy.revision))


def device_of(policy: PolicyConfig) -> str:
    """Return the device of a configuration; auto: a GPU where there is one. Raises EnvironmentFault for one that this
    machine does not have."""
    if policy.device.startswith("cuda"):
        number = int(policy.device.partition(":")[2] or 0)
        if number >= torch.cuda.device_count():
            raise EnvironmentFault(
                f"policy.device={policy.device}: torch sees {torch.cuda.device_count()} GPUs here; ask for one of "
                "them, or set policy.device=auto"
            )
    if policy.device != "auto":
        return policy.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _model(policy: PolicyConfig, source: Path, for_training: bool, sharded: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    _quiet_libraries()
    if adapters_alone(source):
        return _merged(policy, source, for_training, sharded)
    # explicit: transformers would otherwise ask on the terminal whether to run a model's own code
    options: dict[str, Any] = {"dtype": _dtype(policy, for_training), "trust_remote_code": False}
    with readable_model(_cannot(source), _REMEDY):
        values = AutoConfig.from_pretrained(source, trust_remote_code=False).to_dict()
    _require_plausible(source, values)
    require_unquantized(values, f"policy.model_name={source}")
    if _in_4bit(policy, for_training):
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            # FSDP shards floating-point tensors alone, and casts to its compute type: to bfloat16, or not at all
            bnb_4bit_quant_storage=torch.bfloat16 if sharded else torch.uint8,
        )
        options["device_map"] = {"": device_of(policy)}
    elif sharded and distributed.rank():
        return room_for(source)
    with readable_model(_cannot(source), _REMEDY, seconds=None):
        model, info = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
        require_all(_cannot(source), info["missing_keys"], _REMEDY)
    if "quantization_config" in options:
        _leave_unpacked(model, for_training)
    model = model if "device_map" in options or sharded else model.to(device_of(policy))
    _require_finite(_cannot(source), model.named_parameters())
    return model


_PLAUSIBLE = 100
"""Most parameters that a config.json may describe per byte of weights: the count is an estimate, and layers may be
shared."""


def _require_plausible(source: Path, values: Mapping[str, Any]) -> None:
    """Raise InputError where a config.json describes far more than the weights hold: the library would allocate all of
    it before it reads them."""
    stored = sum(path.stat().st_size for path in weight_files(source) if path.is_file())
    parameters = 0.0
    with suppress(InputError, TypeError, ValueError, ArithmeticError):  # another family's, or for the library to refuse
        parameters = float(estimated(values).total)
    if parameters > _PLAUSIBLE * (stored + 2**20):
        raise InputError(
            f"{_cannot(source)} (its config.json describes {parameters:.1e} parameters, its weights are {stored:,} "
            f"bytes); {_REMEDY}"
        )


def quantised_again(model: Any, device: str) -> Any:
    """Return a sharded 4-bit model with its whole weights, read again from its source."""
    options = {"quantization_config": model.config.quantization_config, "device_map": {"": device}}
    again = type(model).from_pretrained(model.name_or_path, trust_remote_code=False, **options)
    _leave_unpacked(again, for_training=False)
    return again


_PACKED_ROWS, _PACKED_COLUMNS = 32, 64
"""Units in which bitsandbytes packs a 4-bit matrix on a CPU that multiplies in bfloat16 (AVX512)."""


def _leave_unpacked(model: Any, for_training: bool) -> None:
    """Keep matrices unpacked that bitsandbytes cannot pack, where it would raise in the first pass, and all those of a
    model in training: after one evaluation they would stay packed, and packed ones pass no gradient."""
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False):
            whole = module.out_features % _PACKED_ROWS == module.in_features % _PACKED_COLUMNS == 0
            module.support_avx512bf16_for_cpu = whole and not for_training


def _require_finite(what: str, tensors: Iterable[tuple[str, Any]]) -> None:
    """Raise InputError if a weight is NaN or infinite: the model would act, and its figures mean nothing."""
    for name, tensor in tensors:
        packed = hasattr(tensor, "quant_state")  # 4-bit numbers in any storage type
        if tensor.is_floating_point() and not packed and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{what} ({name} holds NaN or infinite weights); {_REMEDY}")


def _require_embedded(what: str, tokenizer: Any, model: Any) -> None:
    """Raise InputError if the tokenizer has a token without an embedding in the model: a text or a template with it
    would end a stage in the middle."""
    rows = model.get_input_embeddings().weight.shape[0]
    token, largest = max(tokenizer.get_vocab().items(), key=lambda entry: entry[1], default=("", -1))
    if largest >= rows > 0:
        raise InputError(
            f"{what} (its tokenizer has the token {token!r} with id {largest}, its embedding {rows} rows); resize the "
            "model's embedding to the tokenizer, or take the token out of tokenizer.json"
        )


def put_adapters_on(model: Any, folder: Path, *, name: str = "default", is_trainable: bool = False) -> Any:
    """Return the model, which may be a PeftModel already, with the adapters of a folder on it under a name, active.
    Raises InputError where they are incomplete, belong to another model, or are not finite."""
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    file = folder / "adapter_model.safetensors"
    with readable_model(_cannot(folder), _REMEDY):
        rank = getattr(PeftConfig.from_pretrained(str(folder)), "r", 0)
        if file.exists() and rank > file.stat().st_size:
            raise InputError(f"{_cannot(folder)} (its {ADAPTERS} asks for r={rank}, beyond its weights); {_REMEDY}")
        if isinstance(model, PeftModel):
            model.load_adapter(str(folder), adapter_name=name, is_trainable=is_trainable)
        else:
            model = PeftModel.from_pretrained(model, str(folder), adapter_name=name, is_trainable=is_trainable)
        tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        if file.exists():
            with safe_open(file, framework="pt") as stored:
                require_all(_cannot(folder), tensors.keys() - set(stored.keys()), _REMEDY)
    _require_finite(_cannot(folder), tensors.items())
    return model


def _merged(policy: PolicyConfig, adapters: Path, for_training: bool, sharded: bool) -> Any:
    if policy.load_in_4bit is True:
        raise UsageError(
            f"policy.load_in_4bit=true: {adapters} holds adapters, which cannot be merged into 4-bit "
            "weights; set it to false or auto"
        )
    name = base_of(adapters)
    own = replace(policy, model_name=name, revision=None, load_in_4bit=False)
    base = _model(own, model_folder(name), for_training, sharded)
    if sharded and distributed.rank():
        return base  # room for what rank 0 merges
    require_base(adapters, name, base_sha256(name, hash_weights=True))
    dtype = base.dtype  # read now: `to` changes the base in place
    adapted = put_adapters_on(base.to(torch.promote_types(dtype, torch.float32)), adapters)
    return adapted.merge_and_unload().to(dtype)


def _quiet_libraries() -> None:
    """Silence the libraries: no progress bars while loading weights, no advice on kernels, renamed options or missing
    accelerators."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")


def _tokenizer(source: Path) -> Any:
    from transformers import AutoTokenizer

    require_tokenizer(_cannot(source), source, _REMEDY)
    with readable_model(_cannot(source), _REMEDY):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


_REMEDY = "name tiny, toy, a directory with weights and tokenizer, or a hub model that is downloaded or can be"


def _cannot(source: Path) -> str:
    return f"policy.model_name: cannot load {source}"


def _dtype(policy: PolicyConfig, for_training: bool) -> Any:
    if for_training:
        return "auto" if policy.lora_r > 0 and policy.model_name not in BUNDLED else torch.float32
    if policy.dtype != "auto":
        return getattr(torch, policy.dtype)
    if policy.model_name in BUNDLED:
        return torch.float64 if device_of(policy) == "cpu" else torch.float32
    return "auto"


def _in_4bit(policy: PolicyConfig, for_training: bool) -> bool:
    """True if weights are to be quantised. Raises UsageError where 4-bit weights are asked for and cannot be had."""
    if for_training:
        policy.require_trainable()
    problem = _why_not_4bit(policy, for_training)
    if problem is not None and policy.load_in_4bit is True:
        raise UsageError(f"policy.load_in_4bit=true: {problem}; set it to false or auto")
    if problem is not None and policy.load_in_4bit == "auto":
        logger.info("  4-bit weights are off: policy.load_in_4bit=auto reason=%s", problem)
    return policy.in_4bit and problem is None


def _why_not_4bit(policy: PolicyConfig, for_training: bool) -> str | None:
    if policy.model_name in BUNDLED:
        return "a bundled model is not quantised"
    if for_training and policy.lora_r == 0:
        return "4-bit weights cannot be trained themselves, policy.lora_r is 0"
    if importlib.util.find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed (pip install 'r2v[gpu]')"
    return None


def with_fresh_adapters(loaded: Loaded, policy: PolicyConfig, seed: int) -> Loaded:
    """Return the same base, not loaded again, with new adapters in place of its former ones."""
    return replace(loaded, model=_with_adapters(policy, loaded.model.unload(), seed))


def _with_adapters(policy: PolicyConfig, model: Any, seed: int, sharded: bool = False) -> Any:
    from peft import get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=not sharded)  # else FSDP's own
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(seed, "lora"))
        return get_peft_model(model, adapter_settings(policy, policy.lora_dropout))


def adapter_settings(policy: PolicyConfig, dropout: float) -> Any:
    """Return the `peft.LoraConfig` of a configuration's adapters, with this dropout."""
    from peft import LoraConfig

    return LoraConfig(
        r=policy.lora_r,
        lora_alpha=policy.effective_lora_alpha,
        target_modules="all-linear",
        lora_dropout=dropout,
        task_type="CAUSAL_LM",
    )
