"""Measurements are looked up in files, and made once if they are missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from r2v.errors import InputError, UsageError
from r2v.memory import store
from r2v.memory.measured.child import answer
from r2v.memory.measurement import MeasuredCase, MeasuredMemory, Moment, as_values, from_values
from r2v.memory.model_registry import MODEL_CONFIGS, ModelConfigValues
from r2v.storage.files import write_json
from tests.memory.measuring import READER, SMALL

CASE = MeasuredCase(code="r2v.hrl.training.rehearsal:memory", action="train", role="critic", model=READER)
RESULT = MeasuredMemory(
    moments=(Moment(stretch="fresh", name="backward", terms=(1.0, 2.0, 0.0, 3.5, 0.25, 0.0, 0.0)),),
    flops=(0.0, 0.0, 0.0, 0.0, 6.0, 0.0, 0.0),
    trained=10,
    trained_bytes=40,
    weights=40,
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_case_is_measured_once_and_read_from_then_on(project: Path) -> None:
    asked = list[MeasuredCase | ModelConfigValues]()

    def measure(case: MeasuredCase | ModelConfigValues) -> dict[str, Any]:
        asked.append(case)
        return as_values(RESULT)

    with pytest.raises(store.NotMeasuredError, match="not measured yet; r2v plan --config FILE"):
        store.measurement(CASE)
    assert [store.measurement(CASE, measure) for _ in range(2)] == [RESULT, RESULT] == [store.measurement(CASE)] * 2
    assert asked == [CASE]
    assert [path.name for path in (project / "outputs/.measured").iterdir()] == [f"{CASE.key}.json"]


def test_a_damaged_file_is_measured_anew(project: Path) -> None:
    write_json(store.MEASURED / f"{CASE.key}.json", as_values(RESULT))
    (project / f"outputs/.measured/{CASE.key}.json").write_text("{")
    assert store.measurement(CASE, lambda _: as_values(RESULT)) == RESULT
    (project / f"outputs/.measured/{CASE.key}.json").write_text('{"moments": [["fresh", "x", 1]], "flops": []}')
    assert store.measurement(CASE, lambda _: as_values(RESULT)) == RESULT


def test_a_case_of_another_shape_or_method_has_another_key() -> None:
    others = [replace(CASE, checkpoint=True), replace(CASE, model=SMALL), replace(CASE, width=2)]
    assert len({CASE.key, *(one.key for one in others)}) == 4


def test_the_largest_moment_of_a_stretch_is_the_peak() -> None:
    assert RESULT.peak(("fresh",), rows=2, tokens=8).size == 1 + 16 + 7 + 4
    assert RESULT.peak(("fresh",), rows=2, tokens=8).at == "backward"
    assert RESULT.peak(("step",), rows=2, tokens=8).size == 0
    assert RESULT.operations(rows=2, tokens=8) == 96
    assert from_values(json.loads(json.dumps(as_values(RESULT)))) == RESULT


def test_the_measuring_process_measures_and_refuses(project: Path) -> None:
    with store.Measuring() as measure:
        sizes = store.sizes(SMALL, "small", measure)
        assert sizes.embedding == 700 * 64 and sizes.head == 0
        with pytest.raises(UsageError, match="cannot be planned: nonsense"):
            store.sizes({"model_type": "nonsense"}, "x", measure)
    assert store.stored_sizes(SMALL) == sizes
    with pytest.raises(InputError, match="sizes of x: not measured yet"):
        store.sizes(SMALL | {"hidden_size": 8}, "x")


def test_what_the_package_ships_is_what_is_measured_here() -> None:
    """One small shipped record, measured again."""
    values = MODEL_CONFIGS["HuggingFaceTB/SmolLM2-135M"]
    assert store.shipped()[store.sizes_key(values)] == answer(values)
