from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import EmptyResult, InputError
from r2v.router.labels import (
    FeatureRow,
    check_rows,
    differs_from_record,
    disagrees,
    labelled,
    one_class,
    read_rows,
    write_rows,
)
from r2v.wire.message import ToolSpec

from .rows import make_row

ROWS = labelled([make_row(number) for number in range(120)], "counterfactual")


def test_label_kinds() -> None:
    row = replace(
        make_row(0),
        q_slm=0.5,
        q_llm=0.75,
        cost_slm=1,
        cost_llm=11,
        disagrees=False,
        slm_episode_success=False,
    )
    label = {kind: labelled([row], kind)[0].y_escalate for kind in ("counterfactual", "disagreement", "episode")}
    assert label == {"counterfactual": 1, "disagreement": 0, "episode": 1}
    harmful = replace(row, q_slm=1.0, q_llm=0.0)
    assert harmful.gain == -1 and labelled([harmful], "counterfactual")[0].y_escalate == 0


def test_an_injected_instruction_that_is_carried_out_has_a_price() -> None:
    row = replace(make_row(0), q_slm=1.0, q_llm=1.0, obeyed_slm=1.0, obeyed_llm=0.0)
    assert [labelled([row], "counterfactual", price)[0].y_escalate for price in (0.0, 0.5)] == [0, 1]
    torn = replace(row, q_llm=0.0)  # deferring avoids the harm and loses the task
    assert [labelled([torn], "counterfactual", price)[0].y_escalate for price in (1.0, 1.5)] == [0, 1]
    assert (row.worth(2.0), torn.worth(2.0), row.gain) == (2.0, 1.0, 0.0)


def test_label_without_its_ground_is_refused() -> None:
    with pytest.raises(InputError, match="no branches"):
        labelled([replace(make_row(0), q_llm=None)], "counterfactual")
    with pytest.raises(InputError, match="no expert action"):
        labelled([replace(make_row(0), disagrees=None)], "disagreement")


def test_a_step_that_was_not_branched_has_no_gain_and_cost_nothing() -> None:
    row = FeatureRow(
        state_id="t1/s1#0",
        episode_id="t1/s1",
        task_id="t1",
        split="train",
        step_idx=0,
        actor="slm",
        features={},
        slm_episode_success=True,
    )
    assert (row.gain, row.cost_slm, row.cost_llm) == (None, 0.0, 0.0)
    assert (row.y_escalate, row.y_source, row.disagrees, row.condition) == (None, None, None, "clean")
    assert replace(row, q_slm=1.0).gain is None and replace(row, q_llm=1.0).gain is None
    assert replace(row, q_slm=0.25, q_llm=1.0).gain == 0.75


def test_one_class_is_told_by_its_counts_and_a_split_without_steps_is_refused() -> None:
    assert one_class(ROWS) is None
    for label in (0, 1):
        alike = [replace(row, y_escalate=label) for row in ROWS]
        assert one_class(alike) == f"{label * len(ROWS)} of {len(ROWS)} steps have y=1"
        check_rows(alike)
    for split in ("train", "calibration"):
        with pytest.raises(EmptyResult, match=f"no step of a {split} task"):
            check_rows([row for row in ROWS if row.split != split])


def test_disagreement_looks_past_free_arguments() -> None:
    tools = [ToolSpec(name="assign", description="", parameters={"properties": {"id": {}, "tech": {"x-free": True}}})]
    mine = '{"tool":"assign","id":"r7","tech":"t1"}'
    assert not disagrees(mine, '{"tool": "assign", "tech": "t2", "id": "r7"}', tools)
    assert disagrees(mine, '{"tool":"assign","id":"r8","tech":"t1"}', tools)
    assert disagrees(mine, "click", tools)


def test_a_recorded_turn_of_several_calls_is_compared_by_its_calls() -> None:
    tools = [ToolSpec(name="assign", description="", parameters={"properties": {"id": {}, "tech": {"x-free": True}}})]
    one, other = '{"tool":"assign","id":"r7","tech":"t1"}', '{"tool": "look"}'
    turn = f"I look first.\n{other}\n{one}"
    assert not differs_from_record(f"{other}\n{one.replace('t1', 't2')}", turn, tools), "words and free arguments"
    assert differs_from_record(f"{one}\n{other}", turn, tools) and differs_from_record(one, turn, tools)
    assert differs_from_record(turn, one, tools), "a turn that is a call alone is executed as it stands"
    assert not differs_from_record("all  done", "all done", tools) and differs_from_record(one, "all done", tools)


def test_an_imputed_label_is_of_a_recorded_teacher_and_serves_for_nothing_else() -> None:
    records = [replace(row, actor="teacher", slm_episode_success=None, q_slm=None, q_llm=None) for row in ROWS]
    imputed = labelled(records, "imputed")
    assert [row.y_escalate for row in imputed] == [int(bool(row.disagrees)) for row in ROWS]
    check_rows(imputed)
    for kind in ("counterfactual", "episode"):
        with pytest.raises(InputError, match="acted by teacher; make the router features again"):
            labelled(records, kind)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="acted by teacher; a router learns from SLM and routed roll-outs only"):
        check_rows(labelled(records, "disagreement"))
    with pytest.raises(InputError, match="acted by slm; make the router features again"):
        labelled(ROWS, "imputed")
    with pytest.raises(InputError, match="an imputed router learns from a teacher's records only"):
        check_rows([*imputed, replace(ROWS[0], y_source="imputed")])


def test_task_in_both_splits_is_refused() -> None:
    leaked = replace(next(row for row in ROWS if row.split == "train"), split="calibration")
    with pytest.raises(InputError, match=leaked.task_id):
        check_rows([*ROWS, leaked])


def test_evaluation_rows_are_refused() -> None:
    with pytest.raises(InputError, match="split evaluation"):
        check_rows([*ROWS, replace(ROWS[0], split="evaluation")])


@pytest.mark.parametrize("actor", ["teacher", "llm_fallback", "expert"])
def test_only_states_acted_by_the_slm(actor: str) -> None:
    with pytest.raises(InputError, match="SLM"):
        check_rows([*ROWS, replace(ROWS[0], actor=actor)])


def test_a_routed_state_counts_where_the_proposal_is_known_and_both_actions_were_executed() -> None:
    routed = [replace(row, round=1, proposal="a", actor="llm_fallback", threshold=0.5) for row in ROWS]
    check_rows([*ROWS, *routed])
    check_rows([*ROWS, *(replace(row, proposal="") for row in routed)])  # a small policy may reply with nothing
    for lacking in ({"proposal": None}, {"q_slm": None}, {"q_llm": None}):
        with pytest.raises(InputError, match="both actions were executed"):
            check_rows([*ROWS, replace(routed[0], **lacking)])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="acted by teacher"):
        check_rows([*ROWS, replace(routed[0], actor="teacher")])
    assert len(labelled([*ROWS, *routed], "episode")) == len(ROWS), "a routed episode is nobody's alone"


def test_features_of_another_version_are_refused() -> None:
    with pytest.raises(InputError, match="version 0"):
        check_rows([*ROWS, replace(ROWS[0], feature_version="0")])


def test_rows_round_trip_in_any_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert write_rows(first, ROWS) == len(ROWS)
    write_rows(second, reversed(ROWS))
    assert first.read_bytes() == second.read_bytes()
    assert read_rows(first) == sorted(ROWS, key=lambda row: row.state_id)
    first.write_text('{"state_id":"x"}\n')
    with pytest.raises(InputError, match="a.jsonl:1"):
        read_rows(first)
