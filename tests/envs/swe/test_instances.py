"""Instances: the required contents of a file, and the messages where they are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from r2v.envs.swe.instances import chosen, load_instances
from r2v.errors import InputError, UsageError
from tests.envs.swe.made import dataset, record


def test_a_repository_on_this_disk_is_found_beside_its_file(tmp_path: Path) -> None:
    (one,) = load_instances(str(dataset(tmp_path)), "test")
    assert one.repository == (tmp_path / "sums").resolve() and one.fail_to_pass == ("judge.py::test_sum",)
    path = dataset(tmp_path, record(tmp_path, repo="django/django", image="swebench/x:latest"))
    assert load_instances(str(path), "test")[0].repository is None


def test_a_json_list_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    path.write_text(json.dumps([record(tmp_path)]))
    assert load_instances(str(path), "test")[0].instance_id == "sums__sums-1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eval_script": ""}, "instance sums__sums-1: lacks eval_script; take a data set in the format of swebench 5"),
        ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS is None"),
        ({"PASS_TO_PASS": [1]}, "expected a list of tests"),
        ({"split": "dev"}, "split is 'dev'; allowed: train, calibration, evaluation"),
        ({"instance_id": 7}, "instance ?: lacks instance_id"),
    ],
)
def test_a_record_that_is_no_instance_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("?", r"\?").replace("[", r"\[")):
        load_instances(str(dataset(tmp_path, record(tmp_path, **change))), "test")


@pytest.mark.parametrize(("text", "says"), [("", "holds no instance"), ("{", "no JSON"), ("[1]", "holds a list")])
def test_a_file_of_something_else_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(InputError, match=says):
        load_instances(str(tmp_path / "x.jsonl"), "test")


def test_what_is_not_there_is_one_line_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_instances(str(tmp_path / "none.jsonl"), "test")
    with pytest.raises(UsageError, match=r"the hub does not give split test .*there is a network"):
        load_instances("SWE-bench/SWE-bench_Verified", "test")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="run `r2v swebench install`"):
        load_instances("bundled", "test")


def test_an_unknown_id_is_refused_with_the_nearest(tmp_path: Path) -> None:
    listed = load_instances(str(dataset(tmp_path)), "test")
    assert chosen(listed, None) == chosen(listed, ["sums__sums-1"]) == listed
    with pytest.raises(UsageError, match=r"no instance 'sums__sums-2'; did you mean sums__sums-1"):
        chosen(listed, ["sums__sums-2"])
