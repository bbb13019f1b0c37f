"""The whole configuration: one frozen dataclass with a field for each section of the YAML file."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from r2v.config.checks import EVERYDAY_KEY, RUNTIME, check
from r2v.config.cost import CostConfig
from r2v.config.evaluation import AblationsConfig, EvaluationConfig, InferenceConfig, RouterConfig
from r2v.config.execution import LoggingConfig, RolloutConfig
from r2v.config.hierarchical import (
    HierarchicalConfig,
)
from r2v.config.models import PolicyConfig, TeacherConfig
from r2v.config.profiles import AUTO, PROFILE_NAMES
from r2v.config.serving import ServeConfig
from r2v.config.tasks import (
    DataConfig,
    EnvConfig,
    PerturbationsConfig,
    PerturbConfig,
    RunConfig,
)
from r2v.config.training import (
    CandidatesConfig,
    PreferenceConfig,
    TrainingConfig,
    VerifierConfig,
)
from r2v.constraints import NAME, OneOf, Seed, check_fields

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration; config.yaml beside an artifact is one."""

    prefix: Annotated[str, replace(NAME, empty=True)] = field(default="", metadata=RUNTIME | EVERYDAY_KEY)
    """Folder name in place of <benchmark>_<condition>, e.g. mrp: data/mrp, outputs/mrp, results/mrp."""
    profile: Annotated[str, OneOf(values=PROFILE_NAMES)] = field(default=AUTO, metadata=RUNTIME | EVERYDAY_KEY)
    """Settings beneath the file: for a size of model tiny, lora-0.5b, lora-1b, lora-8b, qlora-8b or full-1b; paid-small
    for a whole pipeline below 20 USD, alone or with a size (paid-small+lora-8b). auto: the size of policy.model_name
    where training.lr is not given; none for bundled models, and none for those of providers."""
    seed: Seed = field(default=0, metadata=EVERYDAY_KEY)
    """Random seed of all training."""
    anyway: bool = field(default=False, metadata=RUNTIME)
    """True: stages that ask a paid teacher begin although the cloned policy solves nothing."""
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
    serve: ServeConfig = field(default_factory=ServeConfig, metadata=RUNTIME)

    def __post_init__(self) -> None:
        check_fields("", self)
        check(
            self.inference.max_new_tokens < self.policy.max_seq_len,
            "policy.max_seq_len",
            f"must be above inference.max_new_tokens={self.inference.max_new_tokens}, which are kept for the action",
            self.policy.max_seq_len,
        )
        if self.policy.is_api:
            check(not self.hierarchical.enabled, "hierarchical.enabled", "needs policy.provider=local", True)
            object.__setattr__(self, "evaluation", self.evaluation.of_api_model())
            object.__setattr__(self, "router", self.router.of_api_model())

    @property
    def asks_provider(self) -> bool:
        """True if either model is a provider's, so that stages that ask it are billed."""
        return self.policy.is_api or self.teacher.provider != "scripted"

    @property
    def reads_records(self) -> bool:
        """True if a job reads the teacher's recorded steps: to train on them, or as cases."""
        return not self.policy.is_api or self.router.reads_cases or self.router.imputed


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


def sections_of(settings: type[S], config: Config, **parts: Any) -> S:
    """Return the settings of a stage: each field of `settings` from `parts`, or else the configuration's section of
    that name."""
    fields = dataclasses.fields(typing.cast("Any", settings))
    return settings(**{item.name: getattr(config, item.name) for item in fields if item.name not in parts}, **parts)
