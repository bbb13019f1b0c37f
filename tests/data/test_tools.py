"""Recorded tools: read from every form that logs have, united by name, and written so that they come back the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from r2v.data.registry import DataRegistry
from r2v.data.tools import (
    RecordedTool,
    Tools,
    read_tools,
    tool_of_log,
    tools_of_runs,
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


def _run(root: Path, second: int, provider: str, tools: Tools | None) -> str:
    registry = DataRegistry(root, now=lambda: datetime(2026, 1, 1, second=second, tzinfo=UTC))
    made = {"benchmark": "desk", "provider": provider, "model_name": "m", "fingerprint": "f", "config": {}}
    with registry.begin_run(**made, tools=tools) as run:  # type: ignore[arg-type]
        return run.run_id


def test_executed_runs_say_the_tools_where_there_are_any_and_one_without_leaves_it_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = RecordedTool(name="open", description="otherwise")
    given = (("scripted", (OPEN,)), ("imported", (SHUT,)), ("scripted", None), ("scripted", (other, SHUT)))
    ids = [_run(tmp_path, second, provider, tools) for second, (provider, tools) in enumerate(given)]
    registry = DataRegistry(tmp_path)
    executed, imported, earlier, later = map(registry.get, ids)
    assert tools_of_runs([imported]) == (SHUT,) and tools_of_runs([executed, imported]) == (OPEN,)
    assert tools_of_runs([executed, earlier]) is None
    assert tools_of_runs([executed, later]) == (OPEN, SHUT) and "open in several ways" in caplog.text
    assert "tools" not in (tmp_path / "registry.json").read_text()
