"""A specification is read strictly, and each mistake is one line that names its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config.yaml_text import plain
from r2v.errors import InputError, UsageError
from r2v.experiments.specification.spec import read_spec

BASE = "name: a\nmode: training\ncommand: run {config}\n"


def spec_file(folder: Path, text: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(text)
    return path


MISTAKES = [
    ("mode: training\nbase_config: x\n", 1, "name is missing"),
    ("name: a\nbase_config: x\n", 1, "mode is missing"),
    ("name: a\nmode: trainin\nbase_config: x\n", 2, "training or simulation"),
    ("name: ../a\nmode: training\nbase_config: x\n", 1, "letters, digits"),
    (BASE, 1, "got neither"),
    (BASE + "base_config: x\nconfigs: [y]\n", 5, "got both"),
    (BASE + "base_config: x\nswep: {lr: [1]}\n", 5, "did you mean sweep"),
    (BASE + "base_config: x\nsweep:\n  lr: 0.1\n", 6, "each of which is one candidate"),
    (BASE + "base_config: x\nsweep:\n  a: [1]\n  lr: []\n", 7, "is empty"),
    (BASE + "base_config: x\nsweep: {lr: [1, 1]}\n", 5, "listed twice"),
    (BASE + "base_config: x\nsweep: {lr: [1], lr: [2]}\n", 5, "given twice"),
    (BASE + "base_config: x\nsweep: [lr]\n", 5, "keys with values"),
    (BASE + "base_config: x\nzip:\n  - {layers: [3, 4], width: [8]}\n", 6, "layers has 2, width has 1"),
    (BASE + "base_config: x\nsweep: {a: [1]}\nzip: {a: [1]}\n", 6, "set by sweep and by zip"),
    (BASE + "base_config: x\nsweep: {a: [1], a.b: [1]}\n", 5, "a.b is set by"),
    (BASE + "base_config: x\nsweep: {seed: [1]}\nseeds: [1]\n", 6, "set by sweep and by seeds"),
    (BASE + "base_config: x\nseeds: [1, 1]\n", 5, "different whole numbers"),
    (BASE + "base_config: x\nwhen: {lr: {a: 1}}\n", 5, "no swept key"),
    (BASE + "base_config: x\nchecks:\n  - a = 1\n", 6, "no expression"),
    (BASE + "base_config: x\nchecks: ['__import__(1)']\n", 5, "is not evaluated"),
    (BASE + "base_config: x\nstage: bc\n", 5, "no stage"),
    (BASE + "base_config: x\nstage: evaluate\n", 5, "not both"),
    ("name: a\nmode: simulation\nbase_config: x\nstage: evaluate\n", 4, "trains nothing"),
    ("name: a\nmode: training\nbase_config: x\ncommand: run it\n", 4, "no {config}"),
    (BASE + "configs: [x]\nsweep: {lr: [1]}\n", 5, "a sweep needs a base_config"),
    (BASE + "configs: []\n", 4, "is empty"),
    (BASE + "base_config: x\nasha: {levels: [1, 2]}\n", 5, "names no resource"),
    (BASE + "base_config: x\nmetric: m\nasha: {resource: r, levels: [2, 1]}\n", 6, "each above"),
    (BASE + "base_config: x\nasha: {resource: r, levels: [1, 2]}\n", 5, "needs a metric"),
    (BASE + "base_config: x\nsweep: {a: [*b]}\n", 5, "undefined alias"),
    (BASE + "base_config: x\nsweep: {a: [1\n", 6, "not YAML"),
    (BASE + "base_config: x\n3: x\n", 5, "is no text"),
    ("- name\n", 1, "keys with values"),
]


@pytest.mark.parametrize(("text", "line", "told"), MISTAKES)
def test_a_mistake_is_one_line_with_its_number(text: str, line: int, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line") as refused:
        read_spec(spec_file(tmp_path, text))
    assert f"line {line}: " in str(refused.value) and told in str(refused.value), refused.value
    assert "\n" not in str(refused.value)


def test_anchors_merges_and_words_are_read(tmp_path: Path) -> None:
    text = "base_config: x\nfixed_overrides: &f {a: on}\nsweep: {lr: &lr [1e-3, 1], other: *lr}\n"
    text += "when: {lr: {<<: *f, b: no}}\n"
    spec = read_spec(spec_file(tmp_path, BASE + text))
    assert plain(spec.sweep) == {"lr": [0.001, 1], "other": [0.001, 1]}
    assert spec.when == {"lr": {"a": "on", "b": "no"}}


def test_text_is_kept_where_text_is_expected(tmp_path: Path) -> None:
    resources = "resources: {time: 24:00:00, account: 0123, partition: on, exclusive: true, nodes: 1}\n"
    spec = read_spec(spec_file(tmp_path, BASE + f"base_config: 0123\nmetric: 1e3\nseeds: [0123, 5]\n{resources}"))
    assert (spec.base_config, spec.metric, spec.seeds) == (Path("0123"), "1e3", (123, 5))
    times = {"time": "24:00:00", "account": "0123", "partition": "on"}
    assert spec.resources == {**times, "exclusive": "", "nodes": "1"}


def test_a_former_path_is_accepted_and_told_where_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "experiments").mkdir(parents=True)
    (tmp_path / "configs" / "experiments" / "a.yaml").write_text(BASE + "base_config: x\n")
    with caplog.at_level("WARNING", logger="r2v"):
        assert read_spec(Path("experiments/specs/a.yaml")).name == "a"
    assert "configs/experiments" in caplog.text
    with pytest.raises(InputError, match="did you mean a.yaml"):
        read_spec(Path("experiments/specs/aa.yaml"))
