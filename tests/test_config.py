"""One configuration: the effects of a key, the refusals and their messages, the contents of an identity."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from r2v import config as module
from r2v.config import (
    INJECTION_FAMILIES,
    METHODS,
    PHASES,
    WITHOUT_SEVERITY,
    Config,
    EnvConfig,
    PerturbationsConfig,
    identity,
    keys,
    load,
    load_recorded,
    section,
    sections_of,
    to_yaml,
)
from r2v.config.methods import registry
from r2v.errors import UsageError
from r2v.perturb.category import Scene, category
from r2v.perturb.schedule import GENERIC

REPOSITORY = Path(__file__).parents[1]

SEED_003 = [
    ("training.num_epochs=5", lambda c: c.training.phase("bc").num_epochs, 5),
    ("training.num_epochs=1", lambda c: c.training.phase("bc").num_epochs, 1),
    ("training.lr=1e-5", lambda c: c.training.phase("bc").lr, 1e-5),
    ("training.batch_size=8", lambda c: [c.training.phase(name).batch_size for name in PHASES], [8] * 3),
    (
        "training.gradient_accumulation_steps=16",
        lambda c: [c.training.phase(name).gradient_accumulation_steps for name in PHASES],
        [16] * 3,
    ),
    ("policy.lora_r=32", lambda c: (c.policy.lora_r, c.policy.effective_lora_alpha), (32, 64)),
    ("policy.load_in_4bit=true", lambda c: c.policy.load_in_4bit, True),
    ("policy.load_in_4bit=auto", lambda c: c.policy.load_in_4bit, "auto"),
    (
        "perturbations.prompt_injection.prob=0.2",
        lambda c: c.perturbations.active("noisy")["prompt_injection"].prob,
        0.2,
    ),
]


@pytest.mark.parametrize(("override", "read", "value"), SEED_003, ids=[row[0] for row in SEED_003])
def test_an_override_of_seed_003_changes_what_is_used(override: str, read: Any, value: object) -> None:
    assert read(load(None, [override])) == value


def test_all_on_one_line_and_the_last_of_two_wins() -> None:
    config = load(None, ["training.num_epochs=5", "training.lr=1e-5", "training.lr=2e-5"])
    assert (config.training.num_epochs, config.training.lr) == (5, 2e-5)


def test_a_phase_overrides_what_it_inherits() -> None:
    config = load(None, ["training.lr=1e-5", "training.bc.lr=3e-4"])
    assert (config.training.phase("bc").lr, config.training.lr) == (3e-4, 1e-5)


def test_precedence_is_defaults_file_overrides(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("training: {lr: 0.5, batch_size: 3}\n")
    config = load(tmp_path / "c.yaml", ["training.batch_size=4"])
    assert (config.training.lr, config.training.batch_size, config.training.num_epochs) == (
        0.5,
        4,
        Config().training.num_epochs,
    )


REFUSED = {
    "nothing of an optimiser acts on the router": (
        "training.router.lr=0.1",
        "unknown key training.router.lr; did you mean training.preference.lr?",
    ),
    "a category that is off": (
        "perturbations.latency.enabled=false",
        "unknown key perturbations.latency.enabled",
    ),
    "a mode of a category with one": (
        "perturbations.modes.latency=explicit_permanent",
        "perturbations.modes: got latency, allowed: tool_error, tool_timeout, partial_observation, schema_drift",
    ),
    "an unknown fact of a model": (
        "teacher.model.tool=everywhere",
        "teacher.model: got tool, allowed: temperature, thinking",
    ),
    "no such way of calling tools": (
        "policy.api.model.tools=some",
        "policy.api.model.tools must be none, everywhere or responses, got some",
    ),
    "a fact that is no number": ("teacher.model.batch_price=half", "teacher.model.batch_price must be at least 0"),
    "no severity of an injection": (
        "perturbations.prompt_injection.severity=0.9",
        "perturbations.prompt_injection.severity changes nothing: prompt_injection has no severity; leave it out and "
        "set perturbations.prompt_injection.prob, got 0.9",
    ),
    "no severity of shuffled rows": ("perturbations.shuffled_dom.severity=0.1", "shuffled_dom has no severity"),
    "no severity of a stale page": ("perturbations.stale_observation.severity=1", "stale_observation has no severity"),
    "warm-up of a phase": ("training.bc.warmup_ratio=3", "unknown key training.bc.warmup_ratio; did you mean"),
    "decay of a phase": ("training.bc.weight_decay=3", "training.bc.weight_decay must be in [0, 1], got 3"),
    "decay": ("training.weight_decay=-0.1", "training.weight_decay must be in [0, 1], got -0.1"),
    "unknown injection family": (
        "perturbations.held_out_families=[nonsense]",
        "perturbations.held_out_families: got nonsense, allowed: direct, indirect, goal_hijack",
    ),
    "nucleus of candidates": ("candidates.top_p=1.5", "candidates.top_p must be in (0, 1], got 1.5"),
    "discount": ("verifier.discount=1.5", "verifier.discount must be in [0, 1], got 1.5"),
    "method in plain order": (
        "evaluation.methods=[r2w]",
        f"evaluation.methods: got r2w, allowed: {', '.join(METHODS)}; did you mean r2v?",
    ),
    "condition in plain order": (
        "evaluation.conditions=[noise]",
        "evaluation.conditions: got noise, allowed: clean, noisy, shift, heldout; did you mean noisy?",
    ),
    "feature group in plain order": (
        "router.features=[pages]",
        "router.features: got pages, allowed: uncertainty, samples, verifier, progress, page, tool, cases; "
        "did you mean page?",
    ),
    "C2_unknown_key": ("policy.lorar=32", "unknown key policy.lorar; did you mean policy.lora_r?"),
    "unknown_section": ("polcy.lora_r=32", "did you mean policy.lora_r?"),
    "wrong_type": ("training.lr=fast", "training.lr: Value 'fast'"),
    "section_as_value": ("perturb=3", "perturb: must be keys with values, got 3"),
    "not_a_choice": ("data.condition=windy", "data.condition: Invalid value 'windy'"),
    "not_an_assignment": ("training.lr", "expected key=value"),
    "not_yaml": ("data.runs=[a", "--overrides data.runs=[a: not YAML"),
    "probability": ("perturbations.distractor.prob=1.5", "must be in [0, 1], got 1.5"),
    "not_positive": ("training.bc.lr=0", "training.bc.lr must be above 0 and at most 1e12, got 0"),
    "rank": ("policy.lora_r=-1", "policy.lora_r must be in [0, 65536], got -1"),
    "no_seed": ("evaluation.seeds=[]", "evaluation.seeds must be distinct and not empty"),
    "twice_a_seed": ("data.seeds=[1,1]", "data.seeds must be distinct and not empty"),
    "leaking_hazards": ("data.perturbation_seeds.train=[901]", "train and eval must be disjoint"),
    "unknown_method": ("evaluation.methods=[slm_onli]", "did you mean slm_only?"),
    "unknown_group": ("router.features=[uncertainity]", "did you mean uncertainty?"),
    "unknown_category": ("perturbations.held_out=[distracter]", "did you mean distractor?"),
    "four_bits": ("policy.load_in_4bit=maybe", "policy.load_in_4bit must be true, false or auto, got maybe"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name: str) -> None:
    override, words = REFUSED[name]
    with pytest.raises(UsageError) as refusal:
        load(None, [override])
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


FILES = {
    "C2_unknown_key": ("policy: {lorar: 32}", "unknown key policy.lorar; did you mean policy.lora_r?"),
    "unknown_section": ("polcy: {lora_r: 32}", "unknown key polcy; did you mean policy?"),
    "wrong_type": ("training: {num_epochs: many}", "training.num_epochs: Value 'many'"),
    "not_yaml": ("training: [1, 2", "not YAML"),
    "a_list": ("- training\n- policy", "line 1: must be keys with values, such as `training: {lr: 1e-3}`, got a list"),
    "empty_section": ("training:", "training"),
    "a_word": ("training", "training"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_refused_file_is_named(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        load(path)
    assert str(path) in str(refusal.value) and words in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--config .*none.yaml: no such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [row[0] for row in SEED_003[:-2]],
        [
            "env.options.length=3",
            'run.notes="a: b # c"',
            "perturbations.held_out=[]",
            "data.num_episodes=7",
            "training.bc.lr=1e-7",
        ],
    ],
)
def test_a_resolved_configuration_is_a_configuration_file(overrides: list[str], tmp_path: Path) -> None:
    config = load(None, overrides)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = load(tmp_path / "config.yaml")
    assert again == config
    assert to_yaml(again) == to_yaml(config)


def test_a_configuration_is_written_as_OmegaConf_writes_it() -> None:
    texts = ["1e3", "nan", "0x10", "1_000", "y", "off", "null", "~", "", " a", "a: b", "# c", "- d", "ü", "a b " * 40]
    config = load(None, ["perturbations.held_out=[]", "data.seeds=[1,2]"])
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(
            config.env, options={"texts": texts, "more": {"on": True, "number": 1, "share": 0.5, "small": 1e-9}}
        ),
        training=dataclasses.replace(config.training, lr=1),  # as `router.l2=7` of an ablation: OmegaConf writes 1.0
    )
    assert to_yaml(config) == OmegaConf.to_yaml(OmegaConf.structured(config))


def test_every_configuration_of_the_repository_loads() -> None:
    others = {"experiments", "greedy", "mlp"}  # specifications, and the configurations of an example's own program
    configs = [path for path in sorted((REPOSITORY / "configs").rglob("*.yaml")) if path.parent.name not in others]
    assert configs
    for path in configs:
        load(path)


def test_a_section_comes_back_from_its_identity() -> None:
    env = EnvConfig(benchmark="chain", options={"length": 3})
    assert section(EnvConfig, identity(env)) == env
    with pytest.raises(UsageError, match="EnvConfig"):
        section(EnvConfig, {"benchmrk": "chain"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    env: EnvConfig
    max_steps: int
    seed: int = 7


def test_settings_of_a_stage_are_sections_by_name_and_the_parts_that_are_given() -> None:
    config = load(None, ["seed=3", "env.benchmark=chain"])
    assert sections_of(Read, config, max_steps=4) == Read(env=config.env, max_steps=4, seed=3)
    assert sections_of(Read, config, max_steps=4, seed=5).seed == 5
    with pytest.raises(AttributeError, match="max_steps"):
        sections_of(Read, config)
    with pytest.raises(TypeError, match="max_step"):
        sections_of(Read, config, max_steps=4, max_step=4)


def test_default_ablations_exist() -> None:
    assert set(Config().ablations.names) <= set(registry().rows)


def leaves(record: Any, stem: str = "") -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Yield (dotted key, owner of the field, field) of everything that is not itself a section."""
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{stem}{item.name}.")
        else:
            yield stem + item.name, record, item


def another(value: Any) -> Any:
    """Return a value that differs from this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 7
        case str():
            return value + "x"
        case list():
            return [*value, "x"]
        case dict():
            return {**value, "x": 1}
    return 7


ALL_KEYS = [key for key, _, _ in leaves(Config())]


def test_an_identity_holds_everything_but_where_and_how() -> None:
    config, before = copy.deepcopy(Config()), identity(Config())
    for key, owner, item in leaves(config):
        value = getattr(owner, item.name)
        object.__setattr__(owner, item.name, another(value))
        assert (identity(config) == before) == bool(item.metadata.get("runtime")), key
        object.__setattr__(owner, item.name, value)
    assert identity(config) == before


class NoticedScene(Scene):
    """A scene that records each read of its severity."""

    def __getattribute__(self, name: str) -> Any:
        if name == "severity":
            READ.append(name)
        return super().__getattribute__(name)


READ: list[str] = []


@pytest.mark.parametrize("name", PerturbationsConfig.categories())
def test_a_severity_that_can_be_set_is_read(name: str) -> None:
    READ.clear()
    page = "\n".join(f"[{100 + n}] row {100 + n}: item {n} of order {n * 7}" for n in range(9))
    scene = NoticedScene(
        text=page,
        previous=page.replace("item", "part"),
        goal="please open the row of item seven",
        severity=0.5,
        mode=category(name).mode,
        key=("severity", name),
        surface=GENERIC,
        families=INJECTION_FAMILIES,
    )
    category(name).alter(scene)
    lasts = category(name).kind == "tool_call"  # the schedule reads it, for the number of failures of a call
    assert (bool(READ) or lasts) == (name not in WITHOUT_SEVERITY)


def test_an_identity_is_the_same_from_python_and_from_a_file() -> None:
    assert json.dumps(identity(Config())) == json.dumps(identity(load(None)))


def test_an_identity_knows_the_effective_batch_only() -> None:
    def of(batch_size: int, steps: int) -> Any:
        return identity(
            load(
                None, [f"training.bc.batch_size={batch_size}", f"training.bc.gradient_accumulation_steps={steps}"]
            ).training
        )

    assert of(16, 1) == of(8, 2) == of(1, 16) != of(8, 1)
    phases = [
        load(None, [f"training.batch_size={size}", f"training.gradient_accumulation_steps={steps}"]).training.phase(
            "bc"
        )
        for size, steps in ((8, 2), (4, 4))
    ]
    assert phases[0] != phases[1] and identity(phases[0]) == identity(phases[1])


def test_keys_are_those_of_the_tree() -> None:
    listed = list(keys())
    assert len(listed) == len(set(listed))
    assert set(ALL_KEYS) <= set(listed)


def documented(node: ast.ClassDef) -> dict[str, bool]:
    """Return field -> True if a docstring follows it, or its annotation is a documented section."""
    docs = {}
    for item, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            own = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            named = item.annotation.id if isinstance(item.annotation, ast.Name) else ""
            docs[item.target.id] = (
                own
                or bool(getattr(getattr(module, named, None), "__doc__", None))
                and named.endswith(("Config", "Seeds"))
            )
    return docs


def test_every_knob_is_documented() -> None:
    folder = Path(inspect.getsourcefile(module) or "").parent
    classes = {
        node.name: node
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    inherited = documented(classes["PhaseConfig"]) | documented(classes["TrainingConfig"])
    bare = [
        f"{name}.{field}"
        for name, node in classes.items()
        for field, doc in documented(node).items()
        if not doc and not (name == "Phase" and inherited[field])
    ]
    assert bare == []
    assert all(ast.get_docstring(node) for node in classes.values())


def test_no_load_alters_the_defaults_or_what_another_gave() -> None:
    """The trees of a load are merged in place."""
    changes = ["training.lr=0.5", "data.seeds=[7,8]", "evaluation.methods=[slm_only]", "env.options.x=${data.seeds}"]
    plain, before = to_yaml(load(None)), load(None, changes)
    assert load(None, changes) == before and to_yaml(load(None)) == plain == to_yaml(Config())
    assert (before.training.lr, before.data.seeds, before.env.options["x"]) == (0.5, [7, 8], [7, 8])
    assert load(None, [*changes, "data.seeds=[9]"]).env.options["x"] == [9] and before.data.seeds == [7, 8]


def test_recorded_files_that_say_the_same_are_read_once_and_an_altered_one_anew(tmp_path: Path) -> None:
    first, second = tmp_path / "one.yaml", tmp_path / "two.yaml"
    first.write_text("seed: 3\n")
    second.write_text("seed: 3\n")
    assert load_recorded(first) is load_recorded(second) and load_recorded(first) == load(first)
    second.write_text("seed: 4\n")
    assert (load_recorded(first).seed, load_recorded(second).seed) == (3, 4)
    second.write_text("seed: none\n")
    with pytest.raises(UsageError, match=r"two\.yaml: seed"):
        load_recorded(second)
    with pytest.raises(UsageError, match="no such file"):
        load_recorded(tmp_path / "three.yaml")


@pytest.mark.parametrize("overrides", ["training.lr=1", {"training.lr": 1}])
def test_overrides_are_a_list(overrides: Any) -> None:
    with pytest.raises(UsageError, match=r"overrides: must be a list, such as \['training.lr=1e-3'\], got"):
        load(None, overrides)
