"""Tools of a browser: BrowserGym's high-level actions as JSON schemas. An element is named by its bid, the number in
brackets before it on the page."""

from __future__ import annotations

from typing import Any

from r2v.envs.base import tool

_BID: dict[str, Any] = {"type": "string", "description": "the number in brackets before the element"}
_TEXT: dict[str, Any] = {"type": "string"}
_FREE: dict[str, Any] = {"type": "string", "x-free": True}
_TEXTS: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_NUMBER: dict[str, Any] = {"type": "number"}


ON_PAGE = (
    tool("click", "Click an element.", bid=_BID),
    tool("dblclick", "Click an element twice.", bid=_BID),
    tool("hover", "Move the mouse over an element.", bid=_BID),
    tool("fill", "Put text into a field, in place of what it holds.", bid=_BID, value=_TEXT),
    tool("select_option", "Choose one or more options of a list by their labels.", bid=_BID, options=_TEXTS),
    tool("press", "Press a key or a combination (Enter, Control+a) at an element.", bid=_BID, key_comb=_TEXT),
    tool("focus", "Give the keyboard to an element.", bid=_BID),
    tool("clear", "Empty a field.", bid=_BID),
    tool("drag_and_drop", "Drag an element onto another.", from_bid=_BID, to_bid=_BID),
    tool("keyboard_type", "Type text where the keyboard is.", text=_TEXT),
    tool("scroll", "Scroll the page by pixels.", delta_x=_NUMBER, delta_y=_NUMBER),
    tool("noop", "Wait so many milliseconds.", wait_ms=_NUMBER),
)
"""Tools that stay on the page."""
POINTING = (
    tool("mouse_click", "Click at a point of the page.", x=_NUMBER, y=_NUMBER),
    tool(
        "mouse_drag_and_drop",
        "Drag from one point of the page to another.",
        **dict.fromkeys(("from_x", "from_y", "to_x", "to_y"), _NUMBER),
    ),
)
"""Tools for drawn pages: they need coordinates in the observation."""
ON_THE_WEB = (
    tool("goto", "Open an address.", url=_TEXT),
    tool("go_back", "Go to the previous page."),
    tool("go_forward", "Go to the next page."),
    tool("new_tab", "Open a new tab."),
    tool("tab_close", "Close this tab."),
    tool("tab_focus", "Go to a tab by its number.", index={"type": "integer"}),
)
"""Tools that leave the page."""
ANSWERING = (
    tool("send_msg_to_user", "Give the user the answer, which ends the task.", text=_TEXT),
    tool("report_infeasible", "Say why the task cannot be done, which ends it.", reason=_FREE),
)
"""Tools that end the task with an answer."""
