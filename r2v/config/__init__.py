"""Configuration: a frozen dataclass per YAML section. Precedence: defaults < profile < file < flags < `--overrides`.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])
    config.training.phase("bc").lr

The docstring under a field documents it; its annotation holds its constraints (`r2v.constraints`). `RUNTIME` fields
set where and how a stage runs; they change no result and are not part of fingerprints (`identity`).
"""

from __future__ import annotations

from r2v.config.config import Config as Config
from r2v.config.config import TaskSelection as TaskSelection
from r2v.config.config import identity as identity
from r2v.config.config import sections_of as sections_of
from r2v.config.evaluation import AblationsConfig as AblationsConfig
from r2v.config.evaluation import EvaluationConfig as EvaluationConfig
from r2v.config.evaluation import InferenceConfig as InferenceConfig
from r2v.config.evaluation import RouterConfig as RouterConfig
from r2v.config.execution import LoggingConfig as LoggingConfig
from r2v.config.execution import RolloutConfig as RolloutConfig
from r2v.config.execution import ServeConfig as ServeConfig
from r2v.config.hierarchical import BUNDLED_PROBLEMS as BUNDLED_PROBLEMS
from r2v.config.hierarchical import TASK_PROBLEMS as TASK_PROBLEMS
from r2v.config.hierarchical import CriticConfig as CriticConfig
from r2v.config.hierarchical import GuidanceConfig as GuidanceConfig
from r2v.config.hierarchical import HierarchicalConfig as HierarchicalConfig
from r2v.config.hierarchical import KLConfig as KLConfig
from r2v.config.hierarchical import ProblemsConfig as ProblemsConfig
from r2v.config.hierarchical import ReplayConfig as ReplayConfig
from r2v.config.loading import WITHOUT_FILE as WITHOUT_FILE
from r2v.config.loading import Source as Source
from r2v.config.loading import assigned_keys as assigned_keys
from r2v.config.loading import keys as keys
from r2v.config.loading import load as load
from r2v.config.loading import load_recorded as load_recorded
from r2v.config.loading import section as section
from r2v.config.loading import to_yaml as to_yaml
from r2v.config.methods import METHODS as METHODS
from r2v.config.model_facts import CostConfig as CostConfig
from r2v.config.model_facts import Price as Price
from r2v.config.models import PolicyConfig as PolicyConfig
from r2v.config.models import TeacherConfig as TeacherConfig
from r2v.config.models import endpoint_identity as endpoint_identity
from r2v.config.tasks import INJECTION_FAMILIES as INJECTION_FAMILIES
from r2v.config.tasks import MODES as MODES
from r2v.config.tasks import WITHOUT_SEVERITY as WITHOUT_SEVERITY
from r2v.config.tasks import CategoryConfig as CategoryConfig
from r2v.config.tasks import DataConfig as DataConfig
from r2v.config.tasks import EnvConfig as EnvConfig
from r2v.config.tasks import PerturbationMode as PerturbationMode
from r2v.config.tasks import PerturbationsConfig as PerturbationsConfig
from r2v.config.tasks import PerturbationSeeds as PerturbationSeeds
from r2v.config.tasks import PerturbConfig as PerturbConfig
from r2v.config.tasks import RunConfig as RunConfig
from r2v.config.training import PHASES as PHASES
from r2v.config.training import CandidatesConfig as CandidatesConfig
from r2v.config.training import Phase as Phase
from r2v.config.training import PhaseName as PhaseName
from r2v.config.training import PreferenceConfig as PreferenceConfig
from r2v.config.training import TrainingConfig as TrainingConfig
from r2v.config.training import VerifierConfig as VerifierConfig
from r2v.constraints import IF_GIVEN as IF_GIVEN
from r2v.constraints import RUNTIME as RUNTIME
