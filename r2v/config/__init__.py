"""Configuration: a frozen dataclass per YAML section. Precedence: defaults < profile < file < flags < `--overrides`.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])
    config.training.phase("bc").lr

A field is documented under it; what it may hold stands in its annotation (`r2v.constraints`). `RUNTIME` fields say
where and how something runs; they change no result and so are not part of fingerprints (`identity`).
"""

from __future__ import annotations

from r2v.config.config import Config, TaskSelection, identity, sections_of
from r2v.config.evaluation import CONDITIONS, AblationsConfig, EvaluationConfig, InferenceConfig, RouterConfig
from r2v.config.execution import LoggingConfig, RolloutConfig, ServeConfig
from r2v.config.hierarchical import (
    BUNDLED_PROBLEMS,
    TASK_PROBLEMS,
    CriticConfig,
    GuidanceConfig,
    HierarchicalConfig,
    KLConfig,
    ProblemsConfig,
    ReplayConfig,
)
from r2v.config.loading import WITHOUT_FILE, Source, assigned_keys, keys, load, load_recorded, section, to_yaml
from r2v.config.methods import METHODS
from r2v.config.model_facts import CostConfig, Price
from r2v.config.models import PolicyConfig, TeacherConfig, endpoint_identity
from r2v.config.tasks import (
    INJECTION_FAMILIES,
    MODES,
    WITHOUT_SEVERITY,
    CategoryConfig,
    DataConfig,
    EnvConfig,
    PerturbationMode,
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
from r2v.constraints import IF_GIVEN, RUNTIME

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
    "GuidanceConfig",
    "HierarchicalConfig",
    "IF_GIVEN",
    "INJECTION_FAMILIES",
    "InferenceConfig",
    "KLConfig",
    "LoggingConfig",
    "METHODS",
    "MODES",
    "PHASES",
    "PerturbConfig",
    "PerturbationMode",
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
    "ServeConfig",
    "Source",
    "TASK_PROBLEMS",
    "TaskSelection",
    "TeacherConfig",
    "TrainingConfig",
    "VerifierConfig",
    "WITHOUT_FILE",
    "WITHOUT_SEVERITY",
    "assigned_keys",
    "endpoint_identity",
    "identity",
    "keys",
    "load",
    "load_recorded",
    "section",
    "sections_of",
    "to_yaml",
]
