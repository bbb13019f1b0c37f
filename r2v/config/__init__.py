"""Configuration: a frozen dataclass per YAML section. Precedence: defaults < profile < file < flags < `--overrides`.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])
    config.training.phase("bc").lr

A field is documented under it; what it may hold stands in its annotation (`r2v.constraints`). `RUNTIME` fields say
where and how something runs; they change no result and so are not part of fingerprints (`identity`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from r2v.config.checks import EVERYDAY_KEY, IF_GIVEN, RUNTIME, check
from r2v.config.content import COMPUTED, identity
from r2v.config.cost import CostConfig, Price
from r2v.config.evaluation import CONDITIONS, AblationsConfig, EvaluationConfig, InferenceConfig, RouterConfig
from r2v.config.execution import LoggingConfig, RolloutConfig
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
from r2v.config.key_hints import key_hint
from r2v.config.methods import METHODS, Method
from r2v.config.models import PolicyConfig, TeacherConfig, endpoint_identity
from r2v.config.profiles import AUTO, PROFILE_NAMES, values_of
from r2v.config.renamed_keys import current_assignment, is_removed, rename_keys, warn_of_former_models
from r2v.config.serving import ServeConfig
from r2v.config.sources import (
    YAMLFile,
    file_tree,
    keys_of,
    override_tree,
    require_shapes,
    understood,
    written_tree,
)
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
from r2v.config.yaml_text import write
from r2v.constraints import NAME, OneOf, Seed, check_fields, declared, hints_of, shown, unwrap
from r2v.errors import UsageError

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
    "Method",
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
    "WITHOUT_SEVERITY",
    "assigned_keys",
    "endpoint_identity",
    "identity",
    "keys",
    "load",
    "section",
    "sections_of",
    "to_yaml",
]

S = TypeVar("S")
Source = str | Path | dict[str, Any] | None
"""The YAML file of a configuration, or a tree as `r2v.config.yaml_text` reads one; None: no file."""
WITHOUT_FILE = "the configuration"
"""The source of a tree, in errors."""
Layer = tuple[str, dict[str, Any]]
"""The name of a source of settings, and its tree."""


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


def load(path: Source = None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a profile, a YAML file and `key=value` overrides into a checked Config.

    Raises UsageError (exit 2) in one line for a missing file, an unknown key (with the nearest one), a value of the
    wrong type or out of its range, and for what `r2v.config.sources` refuses.
    """
    return _loaded(list(_layers(path, overrides)))


def load_recorded(path: Path) -> Config:
    """Return the configuration in a file that R2V wrote beside an artifact, read as by `load`. Files that say the same
    share one object, which nobody may alter: a plan reads a file for each earlier run, nearly all of them the same."""
    return _recorded(YAMLFile.read(path))


@functools.lru_cache(maxsize=64)
def _recorded(file: YAMLFile) -> Config:
    return _loaded([_layer(file)])


def _loaded(layers: Sequence[Layer]) -> Config:
    from omegaconf import OmegaConf

    source, merged = "the defaults", copy.deepcopy(_defaults())
    profile = _profile(layers)
    if profile is not None:
        for values in values_of(profile):
            merged = _merged(f"profile={profile}", merged, values)
    for source, tree in layers:
        merged = _merged(source, merged, tree)
    config = understood(source, lambda: OmegaConf.to_object(merged), _own_keys())
    warn_of_former_models(merged)
    assert isinstance(config, Config)
    if config.profile not in (profile, AUTO):
        raise UsageError(f"profile: must be a name of its own, got a reference to {shown(config.profile)}")
    return config


def _profile(layers: Sequence[Layer]) -> str | None:
    """The profile that a user names, if there is one of that name."""
    named = [tree["profile"] for _, tree in layers if "profile" in tree]
    return named[-1] if named and isinstance(named[-1], str) and named[-1] in PROFILE_NAMES[1:] else None


def assigned_keys(path: Source = None, overrides: Sequence[str] = ()) -> set[str]:
    """The dotted keys that a file and overrides give a value. Raises UsageError as `load` does."""
    return {key for source, tree in _layers(path, overrides) for key in keys_of(source, tree)}


def _layers(path: Source, overrides: Sequence[str]) -> Iterator[Layer]:
    """Settings as a user wrote them, the weakest first."""
    if isinstance(path, dict):
        yield WITHOUT_FILE, written_tree(WITHOUT_FILE, path, Config)
    elif path is not None:
        yield _layer(YAMLFile.read(Path(path)))
    for override in overrides:
        source = f"--overrides {shown(override)}"
        override = current_assignment(override)
        _require_assignment(override)
        yield source, override_tree(source, override, Config)


def _layer(file: YAMLFile) -> Layer:
    return str(file.path), file_tree(file, Config)


@functools.cache
def _defaults() -> Any:
    """The tree of the defaults, to be copied before anything is merged into it."""
    from omegaconf import OmegaConf

    return OmegaConf.structured(Config)


def _merged(source: str, tree: Any, changes: dict[str, Any]) -> Any:
    """The tree with other values. Neither is to be used again: copying the whole of it for each override is dear."""
    from omegaconf import OmegaConf

    def merge() -> Any:
        require_shapes(source, tree, changes)
        return OmegaConf.unsafe_merge(tree, changes)

    return understood(source, merge, _own_keys())


def section(cls: type[S], values: dict[str, Any]) -> S:
    """One section from plain values, as `identity` gave them. Raises UsageError as `load` does."""
    from omegaconf import OmegaConf

    name = next(item.name for item in dataclasses.fields(Config) if hints_of(Config)[item.name] is cls)
    tree = {name: {key: value for key, value in copy.deepcopy(values).items() if key not in COMPUTED}}
    rename_keys(tree, cls.__name__, warns=False)
    merged = _merged(cls.__name__, OmegaConf.structured(cls), tree[name])
    made = understood(cls.__name__, lambda: OmegaConf.to_object(merged), _own_keys())
    assert isinstance(made, cls)
    return made


def _require_assignment(override: str) -> None:
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise UsageError(f"--overrides {shown(override)}: expected key=value, e.g. training.lr=1e-3")
    if key not in _own_keys() and not is_removed(key) and not key.startswith(_mappings()):
        raise UsageError(f"--overrides {shown(override)}: unknown key {shown(key)}; {key_hint(key, _own_keys())}")


def keys(cls: type = Config, stem: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        yield stem + item.name
        if dataclasses.is_dataclass(hints[item.name]):
            yield from keys(hints[item.name], f"{stem}{item.name}.")


@functools.cache
def _own_keys() -> tuple[str, ...]:
    """The keys of `Config`."""
    return tuple(keys())


@functools.cache
def _mappings() -> tuple[str, ...]:
    """Beginnings of the keys of mappings, below which a user names keys of his own."""
    free = [key for key, base, _ in declared(Config) if typing.get_origin(base) is dict]
    return tuple(f"{key}{end}" for key in free for end in ".[")


def to_yaml(config: Config) -> str:
    """The configuration as YAML that `load` accepts again."""
    return write(_plain(Config, config))


def _plain(hint: Any, value: Any) -> Any:
    """A field's value as plain values. A whole number in a field of a real one is written as that: 1.0."""
    base, _ = unwrap(hint)
    inner = typing.get_args(base) or (Any, Any)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(hint, getattr(value, name)) for name, hint in hints_of(type(value)).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner[0], item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner[1], item) for key, item in value.items()}
    return float(value) if base is float and value is not None else value
