"""YAML has one reader in R2V, and is written so that readers of YAML 1.1 and of 1.2 agree."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from ruamel.yaml import YAML

from r2v.config import load
from r2v.config.yaml_text import DEEPEST, as_type, plain, read, read_file, write
from r2v.errors import InputError, UsageError
from r2v.experiments.specification.expansion import expand
from r2v.experiments.specification.spec import read_spec
from r2v.slurm.site.site_profile import SITE, project_profile

REPOSITORY = Path(__file__).parents[2]
SHIPPED = [
    *(path for room in ("configs", "r2v", "examples") for path in sorted((REPOSITORY / room).rglob("*.yaml"))),
    *(
        REPOSITORY / name
        for name in ("tests/micro.yaml", "benchmarks/mutate.yaml", "benchmarks/textworld_students.yaml")
    ),
]


@dataclass
class Section:
    """A field of each type."""

    text: str = ""
    word: Literal["on", "1e3"] = "on"
    real: float = 0.0
    whole: int | None = None
    truth: bool = False
    either: bool | str = False
    free: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


READINGS: list[tuple[str, Any, dict[str, Any]]] = [
    ("24:00:00", "24:00:00", {"whole": "24:00:00"}),
    ("0123", "0123", {"whole": 123, "real": 123.0}),
    ("08", "08", {"whole": 8}),
    ("on", "on", {"word": "on", "truth": True, "either": True}),
    ("No", "No", {"truth": False, "either": False}),
    ("1e-4", 1e-4, {"real": 1e-4}),
    ("1e3", 1e3, {"word": "1e3", "real": 1e3}),
    ("1_000", "1_000", {"whole": 1000, "real": 1000.0}),
    ("-12", -12, {"whole": -12, "real": -12}),
    ("0x1F", 31, {"whole": 31}),
    ("0o17", 15, {"whole": 15}),
    (".5", 0.5, {"real": 0.5}),
    ("-.inf", float("-inf"), {"real": float("-inf")}),
    ("2026-01-01", "2026-01-01", {}),
    ("TRUE", True, {"truth": True, "either": True}),
    ("1", 1, {"truth": True}),
]


@pytest.mark.parametrize(("text", "untyped", "typed"), READINGS, ids=[row[0] for row in READINGS])
def test_the_type_of_a_field_reads_a_scalar(text: str, untyped: Any, typed: dict[str, Any]) -> None:
    names = ("text", *typed)
    lines = "".join(f"{name}: {text}\n" for name in names) + f"free: {{a: {text}}}\ntexts: [{text}, '{text}']\n"
    tree = as_type(read(lines, "a test").value, Section)
    expected = {"text": text, **typed, "free": {"a": untyped}, "texts": [text, text]}
    assert tree == expected and all(type(tree[name]) is type(expected[name]) for name in expected)
    assert type(tree["free"]["a"]) is type(untyped)


def test_a_quoted_scalar_is_text_and_nothing_is_null() -> None:
    tree = as_type(read("text:\nfree: {a: '1', b: ~, 1: x, on: null}\ntexts: ['1e3', \"on\"]", "a test").value, Section)
    assert tree == {"text": None, "free": {"a": "1", "b": None, "1": "x", "on": None}, "texts": ["1e3", "on"]}
    assert plain(read("{1: a, on: b, '2': c}", "a test").value) == {1: "a", "on": "b", "2": "c"}


WORDS = (
    *("yes", "no", "on", "off", "y", "n", "Y", "N", "ON", "True", "FALSE", "true", "a:b", "2026-01-01", "24:00:00"),
    *("12:30", "190:20:30.15", "0123", "08", "0o17", "0x1F", "0b1", "1e3", "1e-4", "1.e3", ".5", "+.5", "1_000", "_"),
)
AWKWARD = ("null", "~", "-_", "<<", "=", ".inf", ".nan", "nan", "inf", ".", "-", "a,b", "#c", "x'y", "...", "---")
PLAIN = re.compile(r"[\w.+]([\w.+:-]*[\w.+-])?|-[\w.+]+")
"""Text that needs no quotes in a list, whatever its type."""


def scalars(count: int) -> list[str]:
    """Return scalars without quotes: numbers of every base, times, dates, versions and words, right and nearly
    right."""
    draw = random.Random(35)
    parts = ["0", "00", "1", "59", "2026", "1e", "E-", "0x", "0o", "b", "f", "on", "_", ".", ":", "-", "+", "a"]
    drawn = dict.fromkeys(word for word in WORDS if PLAIN.fullmatch(word))
    while len(drawn) < count:
        text = "".join(draw.choices(parts, k=draw.randint(1, 6)))
        value = plain(read(f"[{text}]", "a test").value)[0] if PLAIN.fullmatch(text) else None
        if isinstance(value, str | bool) or (isinstance(value, int | float) and abs(value) < 1e9):
            drawn[text] = None
    return list(drawn)


def test_300_scalars_are_read_alike_in_configurations_overrides_experiments_points_and_site_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = scalars(300)
    values = f"[{', '.join(drawn)}]"
    texts, untyped = "rollout.sites", "env.options.values"

    def read_by(config: Any) -> tuple[list[str], str]:
        return config.rollout.sites, repr(config.env.options["values"])

    Path("c.yaml").write_text(f"rollout: {{sites: {values}}}\nenv: {{options: {{values: {values}}}}}\n")
    Path("empty.yaml").write_text("{}\n")
    spec = "name: s\nmode: simulation\nbase_config: empty.yaml\nfixed_overrides:\n"
    Path("spec.yaml").write_text(f"{spec}  {texts}: {values}\n  {untyped}: {values}\n")
    (point,) = expand(read_spec(Path("spec.yaml")))
    Path("point.yaml").write_text(point.text)
    Path("own.yaml").write_text(f"{spec}  values: {values}\ncommand: run {{config}}\n")
    (own,) = expand(read_spec(Path("own.yaml")))
    Path("own_point.yaml").write_text(own.text)
    SITE.parent.mkdir(parents=True)
    SITE.write_text(f"modules: {values}\nall_jobs: {{{', '.join(f'd{n}: {text}' for n, text in enumerate(drawn))}}}\n")

    file = read_by(load("c.yaml"))
    assert file[0] == drawn
    assert read_by(load(None, [f"{texts}={values}", f"{untyped}={values}"])) == file
    assert read_by(load("point.yaml")) == file
    assert repr(plain(read_file(Path("own_point.yaml")).value)["values"]) == file[1]
    assert (
        repr(yaml.safe_load(own.text)["values"])
        == repr(YAML(typ="safe", pure=True).load(own.text)["values"])
        == file[1]
    )
    site = project_profile()
    flags = {"true": "", "True": "", "FALSE": None}
    assert list(site.modules) == drawn
    assert list(site.all_jobs.values()) == [flags.get(text, text) for text in drawn]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_shipped_file_is_read_as_before(path: Path) -> None:
    text = path.read_text()
    assert repr(plain(read_file(path).value)) == repr(OmegaConf.to_container(OmegaConf.create(text), resolve=False))


TEXT = st.sampled_from([*WORDS, *AWKWARD]) | st.text(
    st.sampled_from("0123456789+-._:eExXobyn~ #'\"\n\t[{*&!|>%@"), max_size=10
)
LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.text(max_size=12)
TREE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def require_agreement(tree: Any) -> None:
    text = write(tree)
    for value in (plain(read(text, "a test").value), yaml.safe_load(text), YAML(typ="safe", pure=True).load(text)):
        assert repr(value) == repr(tree), text


@settings(max_examples=15, derandomize=True, database=None)
@given(tree=st.dictionaries(TEXT, TREE, max_size=3))
def test_what_is_written_is_read_alike_by_yaml_1_1_and_1_2(tree: dict[str, Any]) -> None:
    require_agreement(tree)


def test_every_word_and_drawn_scalar_is_written_so_that_readers_agree() -> None:
    texts = list(dict.fromkeys([*AWKWARD, *scalars(300)]))
    require_agreement({"texts": texts, "keys": dict.fromkeys(texts, 1.0)})


def test_anchors_aliases_and_merges_are_read() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\nd: [*a, *a]\ne: &e on\nf: *e\n"
    assert plain(read(text, "a test").value) == {**yaml.safe_load(text), "e": "on", "f": "on"}


REFUSED = {
    "an alias of itself": ("a: &a [1, *a]\n", 1, "nested more deeply than 20 levels"),
    "an alias without an anchor": ("a: 1\nb: *a\n", 2, "not YAML: .*undefined alias"),
    "a merge of text": ("a: &a 1\nb:\n  <<: *a\n", 3, "<< merges keys with values"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", 3, "duplicate key a"),
    "a key twice, once in quotes": ("1: a\n'1': b\n", 2, "duplicate key 1"),
    "a key that is a list": ("[a]: 1\n", 1, "a key must be text or a number"),
    "two documents": ("a: 1\n---\nb: 2\n", 2, "not YAML: expected a single document"),
    "a tag": ("a: 1\nb: !!str 3\n", 2, "the tag .* is not read"),
    "no YAML": ("a: [1\nb: 2", 2, "not YAML"),
    "a deep alias": (
        "a: &a" + " {x:" * (DEEPEST // 2) + " 1" + "}" * (DEEPEST // 2) + "\nb:" + " {x:" * (DEEPEST // 2) + " *a"
        "" + "}" * (DEEPEST // 2),
        1,
        "nested more deeply than 20 levels",
    ),
    "a bomb of aliases": (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
        1,
        "more than 20000 values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_line(name: str, tmp_path: Path) -> None:
    text, line, words = REFUSED[name]
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"x\.yaml line {line}: .*{words}"):
        read_file(path)
    with pytest.raises(UsageError, match=rf"^--overrides a=1: .*{words}"):
        read(text, "--overrides a=1")


def test_a_file_that_is_not_there_or_holds_no_keys_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(InputError, match=r"x\.yaml: no such file"):
        read_file(path)
    for text in ("- a\n", "a\n"):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"x\.yaml line 1: must be keys with values"):
            read_file(path)
    path.write_text("# nothing\n")
    assert read_file(path).value == {}


def test_a_value_has_the_line_on_which_it_stands(tmp_path: Path) -> None:
    document = read("a: &a\n  x: 1\nb:\n- *a\n- y: 2\n", tmp_path)
    assert [document.line(*keys) for keys in (("a", "x"), ("b", 0), ("b", 1, "y"), ("b", 1, "none"))] == [2, 1, 5, 5]
    with pytest.raises(UsageError, match="line 5: b.1.y: wrong"):
        document.refuse("wrong", "b", 1, "y")
