"""Configuration: one frozen dataclass per YAML section. Precedence: defaults < file < flags < `--overrides`.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])
    config.training.phase("bc").lr

A field is documented under it and checked in `__post_init__`. `RUNTIME` fields say where and how something runs;
they change no result and so are not part of fingerprints (`identity`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from r2v.config.checks import IF_GIVEN, RUNTIME, positive
from r2v.config.evaluation import CONDITIONS, AblationsConfig, EvaluationConfig, InferenceConfig, RouterConfig
from r2v.config.hierarchical import (
    BUNDLED_PROBLEMS,
    CriticConfig,
    GuidanceConfig,
    HierarchicalConfig,
    KLConfig,
    ProblemsConfig,
    ReplayConfig,
)
from r2v.config.methods import METHODS, Method
from r2v.config.models import CostConfig, PolicyConfig, Price, TeacherConfig, endpoint_identity
from r2v.config.renamed_keys import current_assignment, rename_keys, warn_of_former_models
from r2v.config.tasks import (
    INJECTION_FAMILIES,
    WITHOUT_SEVERITY,
    CategoryConfig,
    DataConfig,
    EnvConfig,
    ExtraCategoryConfig,
    PerturbationsConfig,
    PerturbationSeeds,
    PerturbConfig,
    RunConfig,
)
from r2v.config.training import (
    PHASES,
    CandidatesConfig,
    Phase,
    PhaseConfig,
    PhaseName,
    PreferenceConfig,
    TrainingConfig,
    VerifierConfig,
)
from r2v.errors import UsageError, nearest

__all__ = [
    "AblationsConfig",
    "BUNDLED_PROBLEMS",
    "CONDITIONS",
    "CandidatesConfig",
    "CategoryConfig",
    "Config",
    "CostConfig",
    "CriticConfig",
    "DataConfig",
    "EnvConfig",
    "EvaluationConfig",
    "ExtraCategoryConfig",
    "GuidanceConfig",
    "HierarchicalConfig",
    "IF_GIVEN",
    "INJECTION_FAMILIES",
    "InferenceConfig",
    "KLConfig",
    "LoggingConfig",
    "METHODS",
    "Method",
    "PHASES",
    "PerturbConfig",
    "PerturbationSeeds",
    "PerturbationsConfig",
    "Phase",
    "PhaseConfig",
    "PhaseName",
    "PolicyConfig",
    "PreferenceConfig",
    "Price",
    "ProblemsConfig",
    "RUNTIME",
    "ReplayConfig",
    "RolloutConfig",
    "RouterConfig",
    "RunConfig",
    "TaskSelection",
    "TeacherConfig",
    "TrainingConfig",
    "VerifierConfig",
    "WITHOUT_SEVERITY",
    "endpoint_identity",
    "identity",
    "keys",
    "load",
    "section",
    "to_yaml",
]

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Concurrency of rollouts; nothing here changes a result."""

    workers: int = field(default=2, metadata=RUNTIME)
    """Threads that step environments."""
    max_conversations: int = field(default=64, metadata=RUNTIME)
    """Most conversations at the same time."""
    batch_size: int = field(default=64, metadata=RUNTIME)
    """Largest batch of the local model, in sequences."""

    def __post_init__(self) -> None:
        for name in ("workers", "max_conversations", "batch_size"):
            positive(f"rollout.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where progress and metrics are logged."""

    wandb: Literal["disabled", "offline", "online"] = field(default="disabled", metadata=RUNTIME)
    """Mode of Weights and Biases; offline files are written to logs/wandb."""
    project: str = field(default="r2v-agent", metadata=RUNTIME)
    """Name of the wandb project."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration; config.yaml beside an artifact is one."""

    prefix: str = field(default="", metadata=RUNTIME)
    """Folder name in place of <benchmark>_<condition>, e.g. mrp: data/mrp, outputs/mrp, results/mrp."""
    seed: int = 0
    """Random seed of all training."""
    env: EnvConfig = field(default_factory=EnvConfig)
    data: DataConfig = field(default_factory=DataConfig)
    run: RunConfig = field(default_factory=RunConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    perturbations: PerturbationsConfig = field(default_factory=PerturbationsConfig)
    perturb: PerturbConfig = field(default_factory=PerturbConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ablations: AblationsConfig = field(default_factory=AblationsConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    hierarchical: HierarchicalConfig = field(default_factory=HierarchicalConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


@dataclass(frozen=True, kw_only=True)
class TaskSelection:
    """Not a section: the part of `data` that decides which tasks a rollout plays, and under which perturbations."""

    condition: str
    """Condition of the perturbations."""
    perturbation_seeds: list[int]
    """The i-th rollout seed plays under the i-th of these (cyclic)."""
    split_seed: int
    """As `data.split_seed`."""
    split_by: Literal["task_id", "template_id"]
    """As `data.split_by`."""

    @classmethod
    def training(cls, config: Config) -> TaskSelection:
        """The tasks and perturbations of training."""
        return cls(
            condition=config.data.condition,
            perturbation_seeds=config.data.perturbation_seeds.train,
            split_seed=config.data.split_seed,
            split_by=config.data.split_by,
        )

    @classmethod
    def evaluation(cls, config: Config, condition: str) -> TaskSelection:
        """The tasks and perturbations of an evaluation under `condition`."""
        return cls(
            condition=condition,
            perturbation_seeds=config.data.perturbation_seeds.eval,
            split_seed=config.data.split_seed,
            split_by=config.data.split_by,
        )


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a YAML file and `key=value` overrides into a checked Config.

    Raises UsageError (exit 2) in one line for a missing file, an unknown key (with the nearest one), a value
    of the wrong type, or a value that a section's own check refuses.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    where = "the defaults"
    try:
        merged = OmegaConf.structured(Config)
        if path is not None:
            where = str(path)
            merged = OmegaConf.merge(merged, _read_yaml(Path(path)))
        for override in overrides:
            where = f"--overrides {override}"
            override = current_assignment(override)
            _require_assignment(override)
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([override]))
        config = OmegaConf.to_object(merged)
        warn_of_former_models(merged)
    except OmegaConfBaseException as error:
        raise UsageError(f"{where}: {_explain(error)}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    assert isinstance(config, Config)
    return config


def section(cls: type[S], values: dict[str, Any]) -> S:
    """One section from plain values, as `identity` gave them. Raises UsageError as `load` does."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values))
    except OmegaConfBaseException as error:
        raise UsageError(f"{cls.__name__}: {_explain(error)}") from error
    assert isinstance(made, cls)
    return made


def _read_yaml(path: Path) -> Any:
    from omegaconf import DictConfig, OmegaConf

    if not path.is_file():
        raise UsageError(f"--config {path}: no such file")
    loaded = OmegaConf.load(path)
    if not isinstance(loaded, DictConfig):
        raise UsageError(f"{path}: holds a list, not sections such as `training: {{lr: 1e-3}}`")
    rename_keys(loaded, str(path))
    return loaded


def _require_assignment(override: str) -> None:
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise UsageError(f"--overrides {override}: expected key=value, e.g. training.lr=1e-3")
    if not key.startswith(("env.options.", "perturbations.extra")) and key not in set(keys()):
        raise UsageError(f"--overrides {override}: unknown key {key}; {nearest(key, keys())}")


def _explain(error: Exception) -> str:
    """One line from an OmegaConf error: the full key, the value, what is allowed."""
    key = getattr(error, "full_key", None) or ""
    message = str(error).splitlines()[0]
    unknown = re.match(r"Key '(\w+)' not in", message)
    if unknown:
        return f"unknown key {key}; {nearest(str(key), keys())}"
    return f"{key}: {message}" if key else message


def keys(cls: type = Config, stem: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    import typing

    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        yield stem + item.name
        if dataclasses.is_dataclass(hints[item.name]):
            yield from keys(hints[item.name], f"{stem}{item.name}.")


def to_yaml(config: Any) -> str:
    """The configuration as YAML that `load` accepts again."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def identity(section: Any) -> Any:
    """A section as plain values, without what cannot change a result: RUNTIME fields, IF_GIVEN fields that are None,
    the host of your own endpoint, and the split of the effective batch into micro-batches (only the product counts)."""
    if isinstance(section, TrainingConfig):
        return {name: identity(section.phase(name)) for name in PHASES}
    if dataclasses.is_dataclass(section):
        values = {
            f.name: identity(getattr(section, f.name))
            for f in dataclasses.fields(section)
            if not f.metadata.get("runtime")
            and not (f.metadata.get("if_given") and getattr(section, f.name) in (None, {}))
        }
        if isinstance(section, Phase):
            values["effective_batch"] = values.pop("batch_size") * values.pop("gradient_accumulation_steps")
        if isinstance(section, TeacherConfig) and values.pop("base_url") is not None:
            values["base_url"] = endpoint_identity(str(section.base_url))
        return values
    if isinstance(section, (list, tuple)):
        return [identity(item) for item in section]
    if isinstance(section, dict):
        return {key: identity(section[key]) for key in sorted(section)}
    return section
