"""The whole configuration, a frozen dataclass with a field for each section of the YAML file; and the identity of a
section, the part that decides results and goes into fingerprints."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from r2v.config.engines import LOCAL, POOLING_FLAGS, engine_identity
from r2v.config.evaluation import AblationsConfig, EvaluationConfig, InferenceConfig, RouterConfig
from r2v.config.execution import LoggingConfig, RolloutConfig, ServeConfig
from r2v.config.hierarchical import (
    HierarchicalConfig,
)
from r2v.config.model_facts import CostConfig
from r2v.config.models import BUNDLED_NAMES, APIConfig, PolicyConfig, TeacherConfig, endpoint_identity
from r2v.config.profiles import AUTO, PROFILE_NAMES
from r2v.config.tasks import (
    DataConfig,
    EnvConfig,
    PerturbationsConfig,
    PerturbConfig,
    RunConfig,
)
from r2v.config.training import (
    PHASES,
    CandidatesConfig,
    Phase,
    PreferenceConfig,
    TrainingConfig,
    VerifierConfig,
)
from r2v.constraints import EVERYDAY_KEY, NAME, RUNTIME, OneOf, Seed, check, check_fields, shown
from r2v.errors import UsageError

S = TypeVar("S")

ELISION = "half"
"""Rule that shortens contexts beyond the limit (`r2v.policy.half_elision`): another rule changes the artifacts of
models whose contexts may be too long. In the default context of a bundled model every conversation on the desk fits."""

REMOVED_KEYS: dict[str, Any] = {
    "preference.method": "dpo",
    "preference.rehearsal": 0.0,
    "preference.max_similarity": 0.95,
    "evaluation.cvar_alpha": 0.2,
    "hierarchical.importance_cap": 2.0,
    "teacher.reuse": False,
    "cost.slm.seconds_per_call": 0.02,
    "cost.slm.seconds_per_token": 0.001,
    "cost.llm.seconds_per_call": 0.6,
    "cost.llm.seconds_per_token": 0.02,
    "cost.cache.read": 0.1,
    "cost.cache.write": 1.25,
    "cost.cache.lifetime": 300.0,
    **{f"perturbations.{name}.enabled": True for name in PerturbationsConfig.categories()},
}
"""Removed key -> its fixed value, which is still part of fingerprints; of every category, later ones too."""

_STEMS = {
    PreferenceConfig: "preference",
    EvaluationConfig: "evaluation",
    HierarchicalConfig: "hierarchical",
    TeacherConfig: "teacher",
}
"""Sections with removed keys that fingerprints still hold."""
COMPUTED = ("extra_sha256", "model_sha256")
"""Hashes of a user's modules, which `identity` adds to a section's fields."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration; every artifact has one as config.yaml."""

    prefix: Annotated[str, replace(NAME, empty=True)] = field(default="", metadata=RUNTIME | EVERYDAY_KEY)
    """Folder name in place of <benchmark>_<condition>, e.g. mrp: data/mrp, outputs/mrp, results/mrp."""
    profile: Annotated[str, OneOf(values=PROFILE_NAMES)] = field(default=AUTO, metadata=RUNTIME | EVERYDAY_KEY)
    """Settings that the file overrides: for a size of model tiny, lora-0.5b, lora-1b, lora-8b, qlora-8b or full-1b;
    paid-small for a whole pipeline below 20 USD, alone or with a size (paid-small+lora-8b). auto: by the size of
    policy.model_name unless training.lr is given; none for bundled models and those of providers."""
    seed: Seed = field(default=0, metadata=EVERYDAY_KEY)
    """Random seed of all training."""
    anyway: bool = field(default=False, metadata=RUNTIME)
    """True: stages that call a paid teacher start although the cloned policy solves nothing."""
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
        action, longest = self.inference.max_new_tokens, self.policy.max_seq_len
        rule = f"must be above inference.max_new_tokens={action}, which are kept for the action"
        check(action < longest, "policy.max_seq_len", rule, longest)
        if self.policy.is_api:
            check(not self.hierarchical.enabled, "hierarchical.enabled", "needs policy.provider=local", True)
            object.__setattr__(self, "evaluation", self.evaluation.of_api_model())
            object.__setattr__(self, "router", self.router.of_api_model())

    @property
    def asks_provider(self) -> bool:
        """True if either model is a provider's, so that its calls are billed."""
        return self.policy.is_api or self.teacher.provider != "scripted"

    @property
    def reads_records(self) -> bool:
        """True if a job reads the teacher's recorded steps: to train on them, or as cases."""
        return not self.policy.is_api or self.router.reads_cases or self.router.imputed


@dataclass(frozen=True, kw_only=True)
class TaskSelection:
    """The tasks of a rollout and their perturbations, taken from `data`; not a section of the configuration."""

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
        """Return the tasks and perturbations of training."""
        return cls(
            condition=config.data.condition,
            perturbation_seeds=config.data.perturbation_seeds.train,
            split_seed=config.data.split_seed,
            split_by=config.data.split_by,
        )

    @classmethod
    def evaluation(cls, config: Config, condition: str) -> TaskSelection:
        """Return the tasks and perturbations of an evaluation under `condition`."""
        seeds = config.data.perturbation_seeds.eval
        return replace(cls.training(config), condition=condition, perturbation_seeds=seeds)


def sections_of(settings: type[S], config: Config, **parts: Any) -> S:
    """Return a stage's settings: each field from `parts`, the training tasks (`tasks`), or the section of its name."""
    names = [item.name for item in dataclasses.fields(typing.cast("Any", settings))]
    if "tasks" in names:
        parts.setdefault("tasks", TaskSelection.training(config))
    return settings(**{name: getattr(config, name) for name in names if name not in parts}, **parts)


def identity(section: Any) -> Any:
    """Return a section as plain values without parts that cannot change a result: RUNTIME fields, IF_GIVEN fields at
    their defaults, the host of a self-hosted endpoint, and the split of the effective batch into micro-batches.
    `policy.load_in_4bit=auto` is resolved, and a policy's elision rule is added."""
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
    """True for an IF_GIVEN field at its default: None, empty, or a section of defaults."""
    if not item.metadata.get("if_given"):
        return False
    value = getattr(section, item.name)
    by_default = item.default_factory() if callable(item.default_factory) else None
    return value is None or value == {} or (dataclasses.is_dataclass(value) and identity(value) == identity(by_default))


def removed_values(section: str) -> dict[str, Any]:
    """Return the removed keys of a section, by name, with the values that fingerprints still hold."""
    named = ((key.rpartition("."), value) for key, value in REMOVED_KEYS.items())
    return {name: value for (stem, _, name), value in named if stem == section}


def without_added(tree: dict[str, Any], source: str) -> None:
    """Remove everything that `identity` added to a tree of sections. Raise UsageError if a removed key was changed."""
    for key, value in {**REMOVED_KEYS, **{f"{name}.{added}": None for name in tree for added in COMPUTED}}.items():
        *sections, name = key.split(".")
        section: Any = tree
        for part in sections:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and (got := section.pop(name, value)) != value and name not in COMPUTED:
            raise UsageError(f"{source}: {key}: got {shown(got)}, allowed: {shown(value)}")
    cost = tree.get("cost")
    if isinstance(cost, dict) and isinstance(cost.get("cache"), dict):
        cost |= {f"cache_{name}": value for name, value in cost.pop("cache").items()}
