"""Tools of a browser: BrowserGym's high-level actions as JSON schemas. An element is named by its bid, the number in
brackets before it on the page."""

from __future__ import annotations

from typing import Any

from r2v.wire.message import ToolSpec

_BID: dict[str, Any] = {"type": "string", "description": "the number in brackets before the element"}
_TEXT: dict[str, Any] = {"type": "string"}
_FREE: dict[str, Any] = {"type": "string", "x-free": True}
_TEXTS: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_NUMBER: dict[str, Any] = {"type": "number"}


def _tool(name: str, description: str, /, **properties: dict[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=schema)


ON_PAGE = (
    _tool("click", "Click an element.", bid=_BID),
    _tool("dblclick", "Click an element twice.", bid=_BID),
    _tool("hover", "Move the mouse over an element.", bid=_BID),
    _tool("fill", "Put text into a field, in place of what it holds.", bid=_BID, value=_TEXT),
    _tool("select_option", "Choose one or more options of a list by their labels.", bid=_BID, options=_TEXTS),
    _tool("press", "Press a key or a combination (Enter, Control+a) at an element.", bid=_BID, key_comb=_TEXT),
    _tool("focus", "Give the keyboard to an element.", bid=_BID),
    _tool("clear", "Empty a field.", bid=_BID),
    _tool("drag_and_drop", "Drag an element onto another.", from_bid=_BID, to_bid=_BID),
    _tool("keyboard_type", "Type text where the keyboard is.", text=_TEXT),
    _tool("scroll", "Scroll the page by pixels.", delta_x=_NUMBER, delta_y=_NUMBER),
    _tool("noop", "Wait so many milliseconds.", wait_ms=_NUMBER),
)
"""Tools that stay on the page."""
POINTING = (
    _tool("mouse_click", "Click at a point of the page.", x=_NUMBER, y=_NUMBER),
    _tool(
        "mouse_drag_and_drop",
        "Drag from one point of the page to another.",
        **dict.fromkeys(("from_x", "from_y", "to_x", "to_y"), _NUMBER),
    ),
)
"""Tools for drawn pages: they need coordinates in the observation."""
ON_THE_WEB = (
    _tool("goto", "Open an address.", url=_TEXT),
    _tool("go_back", "Go to the previous page."),
    _tool("go_forward", "Go to the next page."),
    _tool("new_tab", "Open a new tab."),
    _tool("tab_close", "Close this tab."),
    _tool("tab_focus", "Go to a tab by its number.", index={"type": "integer"}),
)
"""Tools that leave the page."""
ANSWERING = (
    _tool("send_msg_to_user", "Give the user the answer, which ends the task.", text=_TEXT),
    _tool("report_infeasible", "Say why the task cannot be done, which ends it.", reason=_FREE),
)
"""Tools that end the task with an answer."""
