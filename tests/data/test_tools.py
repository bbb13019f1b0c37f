"""Recorded tools: read from every form of the logs, united by name, and restored unchanged after writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.data.tools import (
    RecordedTool,
    read_tools,
    tool_of_log,
    tools_sha256,
    united,
    write_tools,
)
from r2v.errors import InputError

OPEN = RecordedTool(name="open", description="opens", parameters={"type": "object", "properties": {"b": {}, "a": {}}})
SHUT = RecordedTool(name="shut")


@pytest.mark.parametrize(
    ("schema", "tool"),
    [
        (
            {"type": "function", "function": {"name": "open", "description": "opens", "parameters": OPEN.parameters}},
            OPEN,
        ),
        ({"name": "open", "description": "opens", "input_schema": OPEN.parameters}, OPEN),
        ({"name": "shut", "description": None}, SHUT),
        ({"type": "web_search"}, None),
        ({"function": "shut"}, None),
    ],
)
def test_a_tool_of_a_log_is_read_in_each_of_its_forms(schema: dict[str, object], tool: RecordedTool | None) -> None:
    assert tool_of_log(schema) == tool


def test_tools_are_united_by_name_and_the_first_counts() -> None:
    other = RecordedTool(name="open", description="otherwise")
    assert united([SHUT, OPEN, SHUT, other]) == ((SHUT, OPEN), ("open",))


def test_tools_come_back_in_the_order_of_their_arguments(tmp_path: Path) -> None:
    write_tools(tmp_path / "tools.json", (OPEN, SHUT))
    back = read_tools(tmp_path / "tools.json")
    assert back == (OPEN, SHUT) and list(back[0].parameters["properties"]) == ["b", "a"]
    turned = RecordedTool(
        name="open", description="opens", parameters={"type": "object", "properties": {"a": {}, "b": {}}}
    )
    assert turned == OPEN and tools_sha256((turned,)) != tools_sha256((OPEN,)), "a prompt tells them in their order"
    (tmp_path / "tools.json").write_text('[{"name": 7}]')
    with pytest.raises(InputError, match=r"tools.json: not a list of tools \(tools\[0\].name: expected text"):
        read_tools(tmp_path / "tools.json")
