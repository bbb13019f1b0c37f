"""Every format and back: a record of another tool becomes an episode and is exported unchanged."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2v.data.episode import Episode, parse_episode, to_line
from r2v.data.interchange.atif import from_atif
from r2v.data.interchange.conversation import Conversation, of_episode, to_episode
from r2v.data.interchange.exporting import atif_record, message_record
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.importing import FORMATS, recognise
from r2v.data.interchange.messages import from_messages
from r2v.data.interchange.sweagent import from_sweagent
from r2v.data.store import StoredEpisodes
from tests.data.interchange.logs import TOOL, atif, called, chat, trajectory


def episode_of(talk: Conversation, **about: Any) -> Episode:
    """Return the episode, after a round trip through a trajectories file."""
    made = to_episode(talk, task_id="t", seed=0, benchmark="logs", format="messages", source="x:1")
    return parse_episode(to_line(made))


def test_chat_messages_come_back_as_they_were() -> None:
    record = chat(success=True)
    back = message_record(episode_of(from_messages(record)))
    assert back["messages"] == record["messages"] and back["tools"] == record["tools"]
    assert (back["model"], back["success"], back["r2v"]["executed"]) == ("gpt-x", True, False)
    assert from_messages({**back, "instance_id": record["instance_id"], "task_id": None}) == from_messages(record)


def test_a_turn_is_one_step_with_its_thought_and_all_its_calls() -> None:
    episode = episode_of(from_messages(chat()))
    actions = [step.action for step in episode.steps]
    assert actions[0].raw_text == (
        "I look at both files.\n"
        '{"tool":"shell","command":"cat one.txt"}\n{"tool":"shell","command":"cat two.txt"}'
    )  # fmt: skip
    assert (actions[0].action_type, actions[0].arguments) == ("", {})
    assert actions[1].raw_text == '{"tool":"edit","arguments":"{not json"}'
    assert actions[2].raw_text == '{"tool":"pick","arguments":{"tool":"hammer"}}'
    assert (actions[1].action_type, actions[3].raw_text) == ("edit", "It is mended.")
    seen = [step.observation.raw_text for step in episode.steps]
    assert seen == ["", "print(1)\n\nprint(\u00e9)", "error\n\nTry again.", "done"]
    assert episode.metadata.goal == "Mend issue 0." and episode.metadata.extra["system"].startswith("You are")


def test_an_atif_document_comes_back_as_it_was() -> None:
    record = atif()
    back = atif_record(episode_of(from_atif(record)))
    wanted = copy.deepcopy(record["steps"])
    for one in wanted:
        one.pop("metrics", None)
    assert back["steps"] == wanted
    assert back["agent"]["tool_definitions"] == record["agent"]["tool_definitions"]
    assert back["schema_version"] == "ATIF-v1.7" and back["final_metrics"]["total_cost_usd"] == 0.25
    assert from_atif(back).turns == from_atif(record).turns


def test_a_copied_step_is_marked_and_a_deterministic_one_too() -> None:
    record = atif()
    record["steps"][4]["llm_call_count"] = 0
    labels = [step.label and step.label.label_source for step in episode_of(from_atif(record)).steps]
    assert labels == ["copied context", None, "copied context", None]
    record["steps"] = record["steps"][:3]
    with pytest.raises(BadRecord, match="every turn"):
        episode_of(from_atif(record))


def test_content_in_parts_is_joined_and_a_picture_leaves_its_place() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "image", "source": {"path": "x.png"}}]
    record = atif()
    record["steps"][1]["message"] = parts
    assert from_atif(record).goal == "Look:\n[image]"
    record = chat()
    record["messages"][1]["content"] = [{"type": "text", "text": "Mend"}, {"type": "image_url", "image_url": {}}]
    assert from_messages(record).goal == "Mend\n[image_url]"


@pytest.mark.parametrize("calls", [False, True])
def test_a_sweagent_trajectory_is_its_history_without_demonstrations_and_other_agents(calls: bool) -> None:
    talk = from_sweagent(trajectory(calls=calls))
    episode = episode_of(talk)
    assert (talk.goal, talk.system, talk.cost, talk.outcome) == ("Mend the colon.", "An interface.", 1.5, None)
    first = 'I list.\n{"tool":"shell","command":"ls"}' if calls else "I list.\n```\nls\n```"
    assert [step.action.raw_text for step in episode.steps] == [first, "submit"]
    assert [step.observation.raw_text for step in episode.steps] == ["", "one.txt"]
    assert episode.tokens.llm_in == 7


def test_a_sweagent_file_without_history_is_its_commands() -> None:
    record = trajectory() | {"history": [], "problem_statement": "Mend it."}
    talk = from_sweagent(record)
    assert talk.goal == "Mend it." and [turn.said.text for turn in talk.turns] == ["I list.\n```\nls\n```"]
    assert talk.messages[-1].text == "one.txt"


def test_a_format_is_recognised_by_content() -> None:
    assert recognise(chat()) == recognise(chat()["messages"]) == recognise({"messages": "[]"}) == "messages"
    assert recognise(atif()) == "atif" and recognise(trajectory()) == "sweagent"
    assert recognise({"history": trajectory()["history"]}) == "sweagent"
    with pytest.raises(BadRecord, match="instance_id, model_patch"):
        recognise({"instance_id": "x", "model_patch": ""})


def test_columns_that_are_json_in_a_string_are_read() -> None:
    record = chat()
    packed = record | {"messages": json.dumps(record["messages"]), "tools": json.dumps(record["tools"])}
    assert from_messages(packed) == from_messages(record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"messages": "[{"}, "no JSON"),
        ({"messages": 3}, "messages is int"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 0: role 'robot'"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "message 0: content"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no turn of the assistant"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no words of the user"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}]}, "without a name"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "\ud800"}]},
            "text that cannot",
        ),
        (atif(schema_version="ATIF-v2.0"), "schema_version 'ATIF-v2.0'"),
        (atif(agent=None), "agent is NoneType"),
        (atif(steps=[7]), r"steps\[0\] is int"),
        (atif(steps=[{"source": "robot", "message": ""}]), "source 'robot'"),
        ({"trajectory": [{"observation": "x"}], "history": []}, "neither response nor action"),
    ],
)
def test_a_bad_record_says_what_is_wrong_with_it(record: Any, words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        episode_of(FORMATS[recognise(record)][1](record))


def test_what_was_executed_here_goes_out_and_comes_back_as_the_same_steps(micro_run: Any) -> None:
    (path,) = (micro_run / "data" / "runs").glob("*/trajectories.jsonl")
    for episode in list(StoredEpisodes(path))[:20]:
        for record, read in ((message_record(episode), from_messages), (atif_record(episode), from_atif)):
            back = episode_of(read(json.loads(json.dumps(record))))
            assert back.metadata.goal == episode.metadata.goal
            assert [s.observation.raw_text for s in back.steps] == [s.observation.raw_text for s in episode.steps]
            assert [json.loads(s.action.raw_text) for s in back.steps] == [
                json.loads(s.action.raw_text) for s in episode.steps
            ]
            assert back.claims_success is episode.success and not back.executed and not back.success


def test_an_episode_whose_steps_were_altered_goes_out_as_it_is_now() -> None:
    episode = episode_of(from_messages(chat()))
    line = to_line(episode).replace('"raw_text":"done"', '"raw_text":"half done"')
    talk = of_episode(parse_episode(line))
    assert talk.turns[-1].observation == "half done" and talk.turns[0].said.calls == ()


def test_a_function_call_of_the_old_kind_is_a_call() -> None:
    record = chat()
    record["messages"][5] = {
        "role": "assistant",
        "content": None,
        "function_call": called("edit", "{}", "")["function"],
    }
    assert from_messages(record).turns[1].said.calls[0].name == "edit"


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
NAME = st.text("abc", min_size=1, max_size=3)
ARGUMENTS = st.sampled_from(['{"a": 1}', "{broken", "", "[]", '"{\\"a\\": 1}"'])
CALL = st.builds(called, NAME, ARGUMENTS, st.sampled_from(["", "x", "y"]))


def block(kind: str, optional: dict[str, Any] | None = None, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=optional)


THOUGHT = block("thinking", {"signature": NAME}, thinking=TEXT) | block("redacted_thinking", data=NAME)
RESULT = block("tool_result", tool_use_id=NAME, content=TEXT, is_error=st.booleans())
MESSAGE = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXT | st.none() | st.lists(THOUGHT, max_size=3)},
        optional={"tool_calls": st.lists(CALL, max_size=3), "reasoning_content": TEXT, "refusal": TEXT},
    ),
    st.just({"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}}),
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "developer"]), "content": TEXT}),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": TEXT},
        optional={"tool_call_id": st.sampled_from(["x", "y"]), "is_error": st.booleans()},
    ),
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": st.lists(block("text", text=TEXT) | RESULT, max_size=3)}
    ),
)
OPENING = [{"role": "user", "content": "goal"}, {"role": "assistant", "content": "a"}]


@settings(max_examples=30)
@given(st.lists(MESSAGE, max_size=6), st.none() | st.booleans(), st.frozensets(st.integers(2, 7)))
def test_whatever_is_imported_comes_back_equal_after_its_export(
    messages: list[dict[str, Any]], outcome: bool | None, copied: frozenset[int]
) -> None:
    """Messages with their ids, thoughts, signatures, failed results and refusals; tools and outcome."""
    record = {"messages": OPENING + messages, "tools": [TOOL], "success": outcome, "r2v": {"copied": [*copied]}}
    talk = from_messages(record)
    exported = json.loads(json.dumps(message_record(episode_of(talk))))
    again = from_messages(exported)
    assert (again.messages, again.tools, again.outcome, again.copied) == (talk.messages, talk.tools, outcome, copied)
    assert (again.turns, again.goal, again.system) == (talk.turns, talk.goal, talk.system)
    assert message_record(episode_of(again))["messages"] == exported["messages"]
