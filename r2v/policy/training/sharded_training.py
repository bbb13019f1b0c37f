"""Sharded training of a policy: the trainer's plugins that divide weights among ranks, and the whole model afterwards.

The plugins are DeepSpeed's ZeRO (`training.zero`), before which each rank has the whole model, and torch's FSDP2
through accelerate (`training.fsdp`), before which rank 0 has it alone (`r2v.policy.sharded_loading`). Afterwards rank 0
has a whole model again, to be measured and exported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.distributed.fsdp import FSDPModule

from r2v import distributed
from r2v.policy.load import Loaded, quantised_again
from r2v.policy.sharded_loading import whole_weights


def zero_plugin(stage: int) -> dict[str, Any]:
    """Return a DeepSpeed configuration of this ZeRO stage; the trainer fills in its `auto` values."""
    return {
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


def skip_shared_memory_build() -> None:
    """Keep DeepSpeed on a CPU from compiling its collectives over shared memory. They take a minute of C++ when a
    machine first starts it, and serve DeepSpeed's own launcher alone, which sets LOCAL_SIZE: our ranks use gloo."""
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False


def fsdp_plugin(checkpointing: bool) -> dict[str, Any]:
    """Return settings of the trainer's FSDP2 plugin: layers are gathered one at a time, each rank writes its part of a
    checkpoint, and the wrapping itself recomputes activations."""
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": checkpointing,
            "cpu_ram_efficient_loading": True,
        },
    }


def is_sharded(trainer: Any) -> bool:
    """True if the weights are sharded over ranks (ZeRO-3, FSDP)."""
    plugin = trainer.accelerator.state.deepspeed_plugin
    return isinstance(trainer.model_wrapped, FSDPModule) or (plugin is not None and plugin.zero_stage == 3)


def gather_model(trainer: Any, loaded: Loaded) -> Loaded:
    """Return the trained policy with all of its weights on rank 0, to be measured and exported. All ranks must call,
    since shards are gathered."""
    if not is_sharded(trainer):
        return loaded
    adapted = hasattr(loaded.model, "peft_config")
    base = loaded.model.get_base_model() if adapted else loaded.model
    in_4bit = bool(getattr(base, "is_loaded_in_4bit", False))
    if isinstance(trainer.model_wrapped, FSDPModule):
        weights = whole_weights(trainer.model_wrapped, trained_alone=in_4bit)
    else:
        weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if distributed.rank():
        return loaded
    fresh = quantised_again(base, str(trainer.args.device)) if in_4bit else type(base)(base.config).to(base.dtype)
    if adapted:
        from peft import get_peft_model

        fresh = get_peft_model(fresh, loaded.model.peft_config["default"])
    for name, weight in fresh.named_parameters():
        if name in weights:  # TRL trains adapters on 4 bits in bfloat16
            weight.data = weight.data.to(weights[name].dtype)
    fresh.load_state_dict(weights, strict=False)
    return replace(loaded, model=fresh.to(trainer.args.device))
