"""Serving: the policy of a configuration behind a serving engine (`policy.engine`), as the wave engine takes it.

The stage's process renders prompts with the tokenizer and reads two configuration files of the model; its weights are
loaded by the engine. An exported policy is named by the content of its adapters, so the same file is the same policy on
every server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from r2v.config import InferenceConfig, PolicyConfig, Price
from r2v.errors import InputError, UsageError
from r2v.llm.engines.client import Adapter, ServedModel
from r2v.llm.engines.fleet import engine_facts, fleet_of, visible_gpus
from r2v.llm.engines.release import EngineModel, engine_home
from r2v.llm.engines.served import served_chat
from r2v.llm.engines.servers import EngineServer
from r2v.llm.local.token_replies import TokenReplies, end_ids
from r2v.llm.types import Reply, Request
from r2v.policy.load import device_of, load_tokenizer
from r2v.policy.prompt_encoder import Encoder
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.integrity import content_files
from r2v.storage.model_identity import base_sha256, model_folder, require_base
from r2v.storage.weights import ADAPTERS, adapters_alone, readable_model
from r2v.wire.message import ToolSpec


def served_policy(
    policy: PolicyConfig,
    weights: Path | None,
    inference: InferenceConfig,
    price: Price,
    tools: Sequence[ToolSpec] = (),
) -> ServedModel[Request, Reply]:
    """Return the policy with the adapters exported in a folder (None: the base), these tools in its prompts, behind the
    configured engine. Raises InputError for weights that no engine serves, EnvironmentFault where there is no
    engine."""
    policy.require_servable()
    model, described = described_model(policy)
    servers = _servers(policy, model)  # first: they load beside the rest
    adapter = None if weights is None else _adapter(policy, weights)
    tokenizer = load_tokenizer(policy, weights)
    encode = Encoder.of(tokenizer, policy, inference.max_new_tokens, tools)
    return served_chat(
        servers,
        adapter,
        encode=encode,
        end_ids=end_ids(described, tokenizer),
        replies=TokenReplies(tokenizer, "slm", price, encode.actions),
    )


def scoring_servers(policy: PolicyConfig, weights: Path) -> tuple[Sequence[EngineServer], Adapter]:
    """Return the servers of verifiers, and the adapters of the verifier in a folder. Raises as `served_policy`."""
    policy.require_servable()
    model, _ = described_model(policy)
    return _servers(policy, replace(model, pooling=True)), _adapter(policy, weights)


def training_servers(policy: PolicyConfig, *, tokens: int, dtype: str, device: str) -> Sequence[EngineServer]:
    """Return the server that generates for one process of a training, on the same `device`: the base in the training's
    dtype, with room for so many tokens. Raises as `served_policy`."""
    policy.require_servable()
    model, _ = described_model(policy)
    return _servers(policy, replace(model, max_model_len=tokens, dtype=dtype), device)


def _servers(policy: PolicyConfig, model: EngineModel, device: str | None = None) -> Sequence[EngineServer]:
    """Return the servers of a model, one on each GPU, or one on this `device`."""
    gpus = []
    if model.gpu_memory is not None:
        import torch

        gpus = visible_gpus(torch.cuda.device_count())
        if device is not None:
            gpus = [gpus[int(device.partition(":")[2] or 0)]]
    return fleet_of(policy.engine, model, home=engine_home(policy.engine_venv), gpus=gpus)


def facts_of_engine(policy: PolicyConfig) -> dict[str, Any]:
    """Return the engine's entry in the manifest of a stage that played; empty for `local`."""
    if policy.engine == "local":
        return {}
    return {"engine": engine_facts(policy.engine, engine_home(policy.engine_venv))}


def _adapter(policy: PolicyConfig, weights: Path) -> Adapter:
    if not (weights / ADAPTERS).exists():
        raise InputError(f"{weights}: holds whole weights, which policy.engine={policy.engine} does not serve")
    require_base(weights, policy.model_name, base_sha256(policy.model_name, policy.revision, hash_weights=True))
    return Adapter(name=f"r2v-{json_sha256(content_files(weights))[:16]}", folder=weights.resolve())


def described_model(policy: PolicyConfig) -> tuple[EngineModel, Any]:
    """Return the base as an engine's model, and its published configurations."""
    from transformers import AutoConfig, GenerationConfig

    folder = model_folder(policy.model_name, policy.revision)
    if adapters_alone(folder):
        raise UsageError(
            f"policy.engine={policy.engine}: {policy.model_name} holds adapters alone; merge them into whole weights "
            "first, or set policy.engine=local"
        )
    source = str(folder.resolve())
    with readable_model(f"policy.model_name: cannot read {source}", "name a directory or a hub model"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # many models have none
        generation = None
    saved = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    model = EngineModel(
        path=source,
        dtype=saved if policy.dtype == "auto" else policy.dtype,
        max_model_len=policy.max_seq_len,
        lora_rank=policy.lora_r,
        gpu_memory=policy.engine_memory if device_of(policy).startswith("cuda") else None,
    )
    return model, SimpleNamespace(config=config, generation_config=generation)
