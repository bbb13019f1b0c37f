"""Values in YAML or after --overrides: read with the intended type, or refused in one line that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import keys, load
from r2v.config.sources import key_hint, synonyms
from r2v.errors import UsageError


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FILES = {
    "a missing value": ("seed: ???", "seed: ??? stands for a value that is missing"),
    "a missing value in options": ("env: {options: {a: {b: '???'}}}", "env.options.a.b: ???"),
    "a key twice": ("seed: 1\nseed: 2", "duplicate key"),
    "very deep": ("{a: " * 5000 + "1" + "}" * 5000, "nested more deeply than 20 levels"),
    "deeper than a stack": ("[" * 100_000, "nested more deeply than 20 levels"),
    "deep": ("env: {options: " + "{a: " * 30 + "1" + "}" * 30 + "}", "nested more deeply than 20 levels"),
    "a bomb of aliases": ("a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]", "unknown key"),
    "an object of Python": (
        "seed: !!python/object/apply:os.system ['true']",
        "line 1: the tag tag:yaml.org",
    ),
    "options that are a list": ("env: {options: []}", "env.options: must be keys with values, got the list []"),
    "tags that are a mapping": ("run: {tags: {}}", "run.tags: must be a list, got {}"),
    "one value for a list": (
        "verifier: {label_sources: outcome}",
        "verifier.label_sources: must be a list, such as verifier.label_sources=[outcome], got outcome",
    ),
    "one value for keys": ("teacher: {model: gpt}", "teacher.model: must be keys with values, got gpt"),
    "a cycle of references": ("seed: ${data.split_seed}\ndata: {split_seed: '${seed}'}", "seed"),
    "a number of 5000 digits": ("seed: " + "9" * 5000, "a number of thousands of digits"),
    "bytes": ("\ufffe\x00", "not YAML"),
    "control characters": ('prefix: "a\\e[2Jb"', "prefix must be a name"),
    "a prefix that leaves": ("prefix: ../../x", "prefix must be a name: letters, digits, . _ and -, not a path"),
    "two lines in a prefix": ('prefix: "a\\nb"', "prefix must be a name"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    (tmp_path / "c.yaml").write_text(text)
    line = refusal(tmp_path / "c.yaml")
    assert words in line and "c.yaml" in line + "c.yaml" * line.startswith("prefix")
    assert "\x1b" not in line and len(line) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "large").write_text("#" * 1_000_001)
    (tmp_path / "latin1").write_bytes(b"prefix: \xe9")
    for path, words in {
        tmp_path: "not a file",
        tmp_path / "loop": "loop",
        tmp_path / "large": "larger than 1000000 bytes",
        tmp_path / "latin1": "not YAML",
        tmp_path / "latin1" / "below": "latin1/below",
        tmp_path / ("x" * 300): "File name too long",
        Path("/dev/null"): "not a file",
    }.items():
        assert words in refusal(path)


SECRETS = [
    "${oc.env:OPENAI_API_KEY}",
    "${oc.env:OPENAI_API_KEY,none}",
    "${ oc.env : GITHUB_TOKEN }",
    "${oc.env:HOME,${oc.env:AWS_SECRET_ACCESS_KEY}}",
    "${oc.env:${run.id}}",
    "${oc.env:'DATABASE_URL'}",
    "${oc.env:DATABASE_URL}",
    "${oc.env:MY_TOKEN_PATH}",
    "${oc.create:{a: 1}}",
    "${oc.decode:${oc.env:HOME}}",
    "${oc.dict.values:cost}",
    "${now:}",
    "a${oc.env:HOME}b${oc.env:PASSWORD}",
    "${${run.notes}:HOME}",
]


@pytest.mark.parametrize("value", SECRETS)
def test_no_secret_and_no_resolver_is_interpolated(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OPENAI_API_KEY",
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "MY_TOKEN_PATH",
        "PASSWORD",
    ):
        monkeypatch.setenv(name, "hunter2")
    (tmp_path / "c.yaml").write_text(f'run: {{notes: "{value}"}}')
    for line in (refusal(tmp_path / "c.yaml"), refusal(None, f'run.notes="{value}"')):
        assert "run.notes" in line and "hunter2" not in line


def test_places_and_other_keys_are_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    config = load(None, ["run.base=${oc.env:SCRATCH}/runs", "data.split_seed=7", "seed=${data.split_seed}"])
    assert (config.run.base, config.seed) == ("/scratch/me/runs", 7)


def test_a_key_in_place_of_its_variable_is_not_repeated() -> None:
    line = refusal(None, "teacher.provider=openai", "teacher.api_key_env=sk-abcdef")
    assert "teacher.api_key_env must be the name of an environment variable" in line and "sk-abcdef" not in line


OVERRIDES = {
    "seed=???": "seed: ???",
    "evaluation.methods=[]": "evaluation.methods must be distinct and not empty",
    "evaluation.methods=[r2v,r2v]": "evaluation.methods must be distinct",
    "evaluation.conditions=[]": "evaluation.conditions must be distinct and not empty",
    "evaluation.budgets=[0.2,0.2]": "evaluation.budgets must be distinct",
    "evaluation.budgets=[0.101,0.104]": "evaluation.budgets must differ in their first two decimals",
    "evaluation.budgets=[1.0]": "evaluation.budgets must be in (0, 1), got 1.0",
    "ablations.names=[]": "ablations.names must be distinct and not empty",
    "router.seeds=[]": "router.seeds must be distinct and not empty",
    "router.num_tasks=-1": "router.num_tasks must be above 0 and at most 1e12, got -1",
    "router.num_calibration_tasks=0": "router.num_calibration_tasks must be above 0 and at most 1e12, got 0",
    "candidates.num_tasks=-1": "candidates.num_tasks must be above 0 and at most 1e12, got -1",
    "router.l2=.nan": "router.l2 must be above 0 and at most 1e12, got nan",
    "cost.ratio=.inf": "cost.ratio must be above 0 and at most 1e12, got inf",
    "cost.llm.input=-1": "cost.llm.input must be at least 0 and at most 1e12, got -1",
    "preference.beta=.inf": "preference.beta must be above 0 and at most 1e12, got inf",
    "preference.sft_weight=-1": "preference.sft_weight must be at least 0 and at most 1e12, got -1",
    "verifier.discount=2": "verifier.discount must be in [0, 1], got 2",
    "training.weight_decay=.nan": "training.weight_decay must be in [0, 1], got nan",
    "training.bc.max_examples=-1": "training.bc.max_examples must be above 0 and at most 1e12, got -1",
    "policy.revision=v1": "policy.revision belongs to a hub model, and policy.model_name=tiny is bundled, got v1",
    "candidates.top_p=0": "candidates.top_p must be in (0, 1], got 0",
    "policy.device=tpu": "policy.device must be auto, cpu, cuda",
    'run.id=""': "run.id must be a name",
    "run.id=..": "run.id must be a name",
    "run.id=/some/dir": "run.id must be a name",
    "run.tags=[a/b]": "run.tags must be a name",
    'run.notes="\\e[2J"': "run.notes must be text without control characters",
    "data.runs=[../x]": "data.runs must be a name",
    "data.seeds=[-1]": "data.seeds must be in [0, ",
    "env.options=[]": "env.options=[]",
    "env.options.num_tasks=.inf": "env.options must be keyword arguments with finite numbers",
    "env.benchmark=../x": "env.benchmark",
    "perturb={constructions: [], include_clean: false}": "perturb.constructions must not be empty",
    "seed=99999999999999999999999": "seed",
    "rollout.workers=1000000": "rollout.workers must be auto or in [1, 4096]",
    "=": "expected key=value",
    "": "expected key=value",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_value_that_means_nothing_is_refused(override: str) -> None:
    line = refusal(None, override)
    assert OVERRIDES[override] in line and "\x1b" not in line


HINTS = {
    "training.learning_rate": "training.lr",
    "training.bc.learning_rate": "training.bc.lr",
    "learning_rate": "training.lr or hierarchical.lr",
    "training.epochs": "training.num_epochs",
    "epochs": "training.num_epochs",
    "training.output_dir": "prefix",
    "output_dir": "prefix",
    "training.batch": "training.batch_size",
    "inference.max_tokens": "inference.max_new_tokens",
    "policy.max_tokens": "policy.max_seq_len",
    "max_tokens": "teacher.max_tokens or inference.max_new_tokens or policy.max_seq_len",
    "policy.lr": "training.lr or hierarchical.lr",
    "trainning.learning_rate": "training.lr",
    "perturbations.latncy.prob": "perturbations.latency.prob",
    "data.seed": "data.seeds",
    "policy.lorar": "policy.lora_r",
}


@pytest.mark.parametrize(("key", "meant"), HINTS.items())
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(key: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown key {key}; did you mean {meant}\\?"):
        load(None, [f"{key}=1"])


def test_a_file_is_answered_as_an_override_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("training: {learning_rate: 1e-3}")
    with pytest.raises(UsageError, match=r"unknown key training.learning_rate; did you mean training.lr\?"):
        load(tmp_path / "config.yaml")


def test_every_synonym_stands_for_keys_that_there_are() -> None:
    own = {key.rpartition(".")[2] for key in keys()}
    assert {meant for names in synonyms().values() for meant in names} <= own
    assert key_hint("nothing_like_it", ["a", "b"]) == "allowed: a, b"
