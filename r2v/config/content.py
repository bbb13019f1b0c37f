"""Content of a configuration section: what of it decides results, and so goes into fingerprints."""

from __future__ import annotations

import dataclasses
from typing import Any

from r2v.config.cost import CostConfig
from r2v.config.engines import LOCAL, POOLING_FLAGS, engine_identity
from r2v.config.evaluation import EvaluationConfig, RouterConfig
from r2v.config.hierarchical import HierarchicalConfig
from r2v.config.models import BUNDLED_NAMES, APIConfig, PolicyConfig, TeacherConfig, endpoint_identity
from r2v.config.renamed_keys import removed_values
from r2v.config.tasks import PerturbationsConfig
from r2v.config.training import PHASES, Phase, PreferenceConfig, TrainingConfig

ELISION = "half"
"""How a context that is too long is shortened (`r2v.policy.half_elision`): another rule makes other artifacts
of models whose contexts may be too long. In the default context of a bundled model each conversation on the desk
fits."""

_STEMS = {
    PreferenceConfig: "preference",
    EvaluationConfig: "evaluation",
    HierarchicalConfig: "hierarchical",
    TeacherConfig: "teacher",
}
"""Sections with removed keys that fingerprints still hold."""
COMPUTED = ("extra_sha256", "model_sha256")
"""Hashes of a user's modules, which `identity` adds to what a section holds."""


def identity(section: Any) -> Any:
    """A section as plain values, without what cannot change a result: RUNTIME fields, IF_GIVEN fields that nobody gave,
    the host of your own endpoint, and the split of the effective batch into micro-batches (only the product counts).
    `policy.load_in_4bit=auto` is what it comes to, and a policy's contexts are shortened by a named rule."""
    if isinstance(section, TrainingConfig):
        return {name: identity(section.phase(name)) for name in PHASES}
    if dataclasses.is_dataclass(section):
        values = {
            f.name: identity(getattr(section, f.name))
            for f in dataclasses.fields(section)
            if not f.metadata.get("runtime") and not _as_by_default(section, f)
        }
        if isinstance(section, Phase):
            values["effective_batch"] = values.pop("batch_size") * values.pop("gradient_accumulation_steps")
        values |= removed_values(_STEMS.get(type(section), ""))
        if isinstance(section, PerturbationsConfig):
            for name in values.keys() & set(section.categories()):
                values[name] |= removed_values(f"perturbations.{name}")
            values |= {"extra_sha256": section.extra_sha256} if section.extra else {}
        if isinstance(section, CostConfig):
            for part in ("slm", "llm"):
                values[part] |= removed_values(f"cost.{part}")
            values["cache"] = {"min_tokens": values.pop("cache_min_tokens"), **removed_values("cost.cache")}
        if isinstance(section, RouterConfig) and section.model_sha256 is not None:
            values["model_sha256"] = section.model_sha256
        if isinstance(section, PolicyConfig):
            values["load_in_4bit"] = section.in_4bit
            if section.model_name not in BUNDLED_NAMES or section.max_seq_len < PolicyConfig().max_seq_len:
                values["elision"] = ELISION
            if values.pop("engine") != LOCAL:
                values["engine"] = engine_identity(section.engine)
            if values.pop("engine_verifier"):
                values["engine_verifier"] = list(POOLING_FLAGS)
        if isinstance(section, (TeacherConfig, APIConfig)) and values.pop("base_url") is not None:
            values["base_url"] = endpoint_identity(str(section.base_url))
        return values
    if isinstance(section, (list, tuple)):
        return [identity(item) for item in section]
    if isinstance(section, dict):
        return {key: identity(section[key]) for key in sorted(section)}
    return section


def _as_by_default(section: Any, item: dataclasses.Field[Any]) -> bool:
    """True for an IF_GIVEN field that nobody gave: None, empty, or a section whose fields are its defaults."""
    if not item.metadata.get("if_given"):
        return False
    value = getattr(section, item.name)
    by_default = item.default_factory() if callable(item.default_factory) else None
    return value is None or value == {} or (dataclasses.is_dataclass(value) and identity(value) == identity(by_default))
