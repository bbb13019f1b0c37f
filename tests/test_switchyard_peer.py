"""Switchyard sees the state as a gateway does; without its interpreter it is left out with a log line."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.switchyard_peer import HOME, INSTALL, SEMANTICS, WINDOWS, Switchyard, conversation, switchyard
from r2v.envs.desk.tools import ACTS, TOOLS
from r2v.rollout.actors import StepView

FIND, FAILED, PAGE = '{"tool": "find", "name": "ann"}', '{"error": "no such record"}', '{"records": []}'
ASSIGN = '{"tool": "assign", "name": "ann"}'


def view(*steps: tuple[str, str]) -> StepView:
    """Return a state after these actions and the pages that answered."""
    actions, pages = tuple(action for action, _ in steps), tuple(page for _, page in steps)
    return StepView(
        task_id="t",
        seed=0,
        step=len(steps),
        max_steps=9,
        goal="close it",
        observations=("start", *pages),
        actions=actions,
        messages=(),
        tools=(),
    )


def test_a_state_is_goal_calls_and_results_with_the_errors_that_pages_tell() -> None:
    first, call, result, *_, unreadable, _ = conversation(view((FIND, FAILED), (FIND, PAGE), ("close!", FAILED)))
    assert first == {"role": "user", "content": [{"type": "text", "text": "close it\n\nstart"}]}
    (block,) = call["content"]
    assert (call["role"], block["type"], block["name"], block["arguments"]) == (
        "assistant",
        "tool_call",
        "find",
        {"name": "ann"},
    )
    (answer,) = result["content"]
    assert (result["role"], answer["tool_call_id"], answer["is_error"]) == ("tool", block["id"], True)
    assert unreadable["content"][0]["name"] == "unreadable"
    assert [m["content"][0]["is_error"] for m in conversation(view((FIND, FAILED), (FIND, PAGE)))[2::2]] == [
        True,
        False,
    ]


def test_every_tool_of_desk_that_changes_a_record_is_declared_to_mutate() -> None:
    observe, mutate = (SEMANTICS["desk"][kind] for kind in ("observe", "mutate"))
    assert set(ACTS) <= set(mutate) and {*observe, *mutate, "done"} == {tool.name for tool in TOOLS}


def test_where_it_is_not_installed_a_line_says_how_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert switchyard("desk", tmp_path) == {}
    assert capsys.readouterr().out == (
        f"switchyard: left out, there is no interpreter at {tmp_path / 'bin' / 'python'}; run `{INSTALL}`\n"
    )


@pytest.mark.skipif(not (HOME / "bin" / "python").exists(), reason=f"Switchyard is not installed ({INSTALL})")
def test_a_score_is_the_largest_threshold_at_which_switchyard_itself_escalates() -> None:
    peer = Switchyard(HOME / "bin" / "python", SEMANTICS["desk"])
    states = [(), ((FIND, FAILED),), ((FIND, FAILED),) * 2, ((FIND, PAGE),) * 5, ((FIND, FAILED), (ASSIGN, PAGE))]
    try:
        for steps in states:
            messages = conversation(view(*steps))
            for window, score in zip(WINDOWS, peer.scores(messages), strict=True):
                for threshold in (0.05, 0.3, 0.5, 0.9):
                    assert peer.escalates(messages, threshold, window) == (score >= threshold)
        assert peer.scores(conversation(view(*states[2])))[0] == 1, "two errors in a row override every threshold"
    finally:
        peer.close()
