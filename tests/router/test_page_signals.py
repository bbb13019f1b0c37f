"""Signatures of actions: tools and roles, the same for goals of other values, on benchmarks of any kind."""

from __future__ import annotations

from r2v.router.page_signals import UNPARSEABLE, signature, tool_of
from r2v.wire.message import ToolSpec

TOOLS = (
    ToolSpec(name="book", description="", parameters={"properties": {"to": {}, "seat": {}, "note": {"x-free": True}}}),
    ToolSpec(name="list", description="", parameters={"properties": {}}),
)
COMMANDS = (ToolSpec(name="do", description="", parameters={"properties": {"command": {"type": "string"}}}),)


def test_an_argument_is_named_by_the_text_that_shows_its_value() -> None:
    pages = ("flights: A7 to Rome", "seats of flight A7: 12")
    action = '{"tool":"book","to":"Rome","seat":12,"note":"by the window","flight":"A7","day":"Monday"}'
    expected = "book day=new flight=page note=free seat=page to=goal"
    assert signature(action, "fly to Rome", pages, TOOLS) == expected
    assert signature(action, "fly to Rome", (pages[0], "done"), TOOLS) == expected.replace("=page", "=seen", 1).replace(
        "seat=page", "seat=new"
    )


def test_a_value_inside_a_word_is_not_shown() -> None:
    assert signature('{"tool":"book","seat":"1"}', "go", ("seat 12",), TOOLS) == "book seat=new"


def test_a_command_in_plain_text_is_its_first_word_and_the_roles_of_the_others() -> None:
    page = "-= Attic =- a brass key on a table. exits: north, east"
    assert signature("take brass key from table", "unlock it with the brass key", (page,)) == "take goal new page"
    assert signature("Go north", "unlock it", (page,)) == "go page" != signature("go west", "unlock it", (page,))


def test_the_only_argument_of_an_only_tool_is_a_command() -> None:
    action = '{"tool":"do","command":"take brass key"}'
    assert signature(action, "get the key", ("a brass key",), COMMANDS) == "take page goal"
    assert tool_of(action, COMMANDS) == "take" and tool_of(action, TOOLS) == "do"


def test_what_no_tool_reads_has_a_signature_of_its_own() -> None:
    for text in ('{"tool":"bo', "", "[1, 2]"):
        assert signature(text, "go", ("page",), TOOLS) == UNPARSEABLE == tool_of(text, TOOLS)


def test_a_turn_of_several_calls_is_all_of_them_without_the_words_beside() -> None:
    turn = 'I shall look first.\n{"tool":"list"}\n{"tool":"book","to":"Rome"}'
    assert signature(turn, "fly to Rome", ("",), TOOLS) == "list; book to=goal"
    assert tool_of(turn, TOOLS) == "list"
