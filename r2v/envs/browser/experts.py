"""Scripted experts for tasks of MiniWoB++: the next call, from the page alone.

They are the stand-in teacher of `miniwob`. Each reads the goal and the page as text, as a model does, and knows nothing
of the pages' own code; where a damaged page lacks what it looks for, it looks again.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable

from r2v.envs.browser.reading import Element, Page, read_page
from r2v.llm.types import Request

Call = dict[str, object]
_TASK = re.compile(r'"miniwob\.([\w-]+)"')
_TEXT_ROLES = ("textbox", "searchbox")


def _click(element: Element | None) -> Call | None:
    return None if element is None else {"tool": "click", "bid": element.bid}


def _button(page: Page, name: str) -> Call | None:
    return _click(page.named(name, "button"))


def _fill(element: Element, value: str) -> Call:
    return {"tool": "fill", "bid": element.bid, "value": value}


def _filled(page: Page, values: list[str], then: str = "Submit") -> Call | None:
    """Put the values into the page's text fields, one after another, and press the button."""
    fields = page.role(*_TEXT_ROLES)
    if len(fields) < len(values):
        return None
    for field, value in zip(fields, values, strict=False):
        if field.value != value:
            return _fill(field, value)
    return _button(page, then)


def _only_button(page: Page) -> Call | None:
    return _click(next(iter(page.role("button")), None))


def _quoted_button(page: Page) -> Call | None:
    return _button(page, page.quoted()[0])


def _sequence(page: Page) -> Call | None:
    one = page.named("ONE", "button")
    return _click(page.named("TWO", "button") if one is not None and one.says("focused") else one)


def _quoted_text(page: Page) -> Call | None:
    return _click(page.named(page.quoted()[0]))


def _dialog(page: Page) -> Call | None:
    wanted = page.quoted()[0]
    return _button(page, "Close" if wanted == "x" else wanted)


def _tab(page: Page) -> Call | None:
    found = re.search(r"Tab #\d+", page.goal)
    return _click(page.named(found[0], "link", "tab")) if found else None


def _find_in_tabs(page: Page) -> Call | None:
    """The word, where this tab has it; else the next tab."""
    if (found := page.named(page.quoted()[0])) is not None:
        return _click(found)
    tabs = page.role("tab")
    here = next((index for index, tab in enumerate(tabs) if tab.says("selected=True")), -1)
    return _click(page.named(tabs[(here + 1) % len(tabs)].name, "link")) if tabs else None


def _find_in_sections(page: Page) -> Call | None:
    """The word, where an open section has it; else the section after the open one."""
    if (found := page.named(page.quoted()[0])) is not None:
        return _click(found)
    sections = page.role("tab")
    here = next((index for index, section in enumerate(sections) if section.says("expanded=True")), -1)
    return _click(sections[(here + 1) % len(sections)]) if sections else None


def _wanted(page: Page) -> list[str]:
    """The names in 'Select A, B and click Submit.'"""
    found = re.match(r"Select (.*?)(?: from the (?:scroll )?list)? and click Submit", page.goal)
    return [] if found is None or found[1] == "nothing" else found[1].split(", ")


def _checkboxes(page: Page) -> Call | None:
    wanted = _wanted(page)
    boxes = page.role("checkbox")
    if any(page.named(name, "checkbox") is None for name in wanted):
        return None
    wrong = (box for box in boxes if box.says("checked='true'") != (box.name in wanted))
    return _click(next(wrong, None)) or _button(page, "Submit")


def _option(page: Page) -> Call | None:
    radio = page.named(_wanted(page)[0], "radio")
    return _button(page, "Submit") if radio is not None and radio.says("checked='true'") else _click(radio)


def _collapsible(page: Page) -> Call | None:
    section = next((tab for tab in page.role("tab") if tab.name.startswith("Section")), None)
    if section is not None and section.says("expanded=False"):
        return _click(section)
    return _button(page, "Submit")


def _widget(page: Page) -> Call | None:
    roles = {"text": ("textbox",), "textarea": ("textbox",)}
    kind = page.quoted()[0]
    fields = page.role(*roles.get(kind, (kind,)))
    # A text area comes after the line of text that looks the same; the page tells them apart by nothing else.
    return _click(fields[-1] if kind == "textarea" and fields else next(iter(fields), None))


def _enter_text(page: Page) -> Call | None:
    return _filled(page, page.quoted()[:1])


def _enter_cased(page: Page) -> Call | None:
    word = page.quoted()[0]
    return _filled(page, [word.lower() if "lower case" in page.goal else word.upper()])


def _login(page: Page) -> Call | None:
    user, password = page.quoted()[:2]
    name, secret = [*page.role(*_TEXT_ROLES)[:2], None, None][:2]
    if name is None or secret is None:
        return None
    if name.value != user:
        return _fill(name, user)
    # A browser shows as many dots as the password has letters.
    return _button(page, "Login") if len(secret.value) == len(password) else _fill(secret, password)


def _two_passwords(page: Page) -> Call | None:
    word = page.quoted()[0]
    empty = (field for field in page.role(*_TEXT_ROLES) if len(field.value) != len(word))
    field = next(empty, None)
    return _fill(field, word) if field is not None else _button(page, "Submit")


def _date(page: Page) -> Call | None:
    found = re.search(r"(\d\d)/(\d\d)/(\d{4})", page.goal)
    field = next(iter(page.role("Date")), None)
    if found is None or field is None:
        return None
    value = datetime.date(int(found[3]), int(found[1]), int(found[2])).isoformat()
    return _button(page, "Submit") if field.value == value else _fill(field, value)


def _time(page: Page) -> Call | None:
    found = re.search(r"(\d+):(\d\d) ([AP])M", page.goal)
    field = next(iter(page.role("InputTime")), None)
    if found is None or field is None:
        return None
    value = f"{int(found[1]) % 12 + 12 * (found[3] == 'P'):02d}:{found[2]}"
    return _button(page, "Submit") if field.value == value else _fill(field, value)


def _focus(page: Page) -> Call | None:
    number = re.search(r"the (\d)", page.goal)
    fields = page.role(*_TEXT_ROLES)
    index = int(number[1]) - 1 if number else 0
    return {"tool": "focus", "bid": fields[index].bid} if index < len(fields) else None


def _list(page: Page) -> Call | None:
    box = next(iter(page.role("combobox")), None)
    if box is None:
        return None
    wanted = _wanted(page)[0]
    if box.value == wanted:
        return _button(page, "Submit")
    return {"tool": "select_option", "bid": box.bid, "options": wanted}


def _scroll_list(page: Page) -> Call | None:
    box = next(iter(page.role("listbox")), None)
    wanted = _wanted(page)
    if box is None or not wanted:
        return None
    if all((found := page.named(name, "option")) and found.says("selected=True") for name in wanted):
        return _button(page, "Submit")
    return {"tool": "select_option", "bid": box.bid, "options": wanted[0] if len(wanted) == 1 else wanted}


def _word(page: Page) -> Call | None:
    found = re.search(r"Find the (\d+)", page.goal)
    words = re.findall(r"\w+", " ".join(page.texts()))
    return _filled(page, [words[int(found[1]) - 1]]) if found and len(words) >= int(found[1]) else None


def _arithmetic(page: Page) -> Call | None:
    found = re.search(r"(-?\d+) *([-+x]) *(-?\d+)", " ".join(page.texts()))
    if found is None:
        return None
    left, right = int(found[1]), int(found[3])
    result = {"+": left + right, "-": left - right, "x": left * right}[found[2]]
    return _filled(page, [str(result)])


def _algebra(page: Page) -> Call | None:
    found = re.search(r"(x|-?\d+) *([-+]) *(x|-?\d+) *= *(-?\d+)", " ".join(page.texts()))
    if found is None:
        return None
    sign, right = (1 if found[2] == "+" else -1), int(found[4])
    x = right - sign * int(found[3]) if found[1] == "x" else sign * (right - int(found[1]))
    return _filled(page, [str(x)])


def _letters(page: Page) -> Call | None:
    letters = [element.name for element in page.role("StaticText")]
    return _filled(page, ["".join(letters)])


EXPERTS: dict[str, Callable[[Page], Call | None]] = {
    "click-button": _quoted_button,
    "click-button-sequence": _sequence,
    "click-checkboxes": _checkboxes,
    "click-checkboxes-large": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-collapsible": _collapsible,
    "click-collapsible-2": _find_in_sections,
    "click-dialog": _dialog,
    "click-dialog-2": _dialog,
    "click-link": _quoted_text,
    "click-option": _option,
    "click-scroll-list": _scroll_list,
    "click-tab": _tab,
    "click-tab-2": _find_in_tabs,
    "click-tab-2-easy": _find_in_tabs,
    "click-tab-2-hard": _find_in_tabs,
    "click-tab-2-medium": _find_in_tabs,
    "click-test": _only_button,
    "click-test-2": lambda page: _button(page, "ONE"),
    "click-widget": _widget,
    "choose-list": _list,
    "enter-date": _date,
    "enter-password": _two_passwords,
    "enter-text": _enter_text,
    "enter-text-2": _enter_cased,
    "enter-text-dynamic": _enter_text,
    "enter-time": _time,
    "find-word": _word,
    "focus-text": _focus,
    "focus-text-2": _focus,
    "login-user": _login,
    "simple-algebra": _algebra,
    "simple-arithmetic": _arithmetic,
    "text-transform": _letters,
    "unicode-test": _quoted_button,
}
"""Tasks of MiniWoB++ that the stand-in teacher can do."""
_BEGIN_SOLVED = ("drag-box", "drag-cube", "generate-number")
"""The box may lie inside, the cube may show its side, and no number at all counts as even."""


def hand_in(request: Request) -> str:
    """The call of a player who hands the page in as it stands: press its submit button, else wait."""
    pages = [message.text for message in request.messages if message.role == "tool"]
    page = read_page(pages[-1] if pages else "")
    call = _button(page, "Submit") or _button(page, "submit")
    return json.dumps(call or {"tool": "noop", "wait_ms": 100}, separators=(",", ":"))


def begins_solved(task: str, observation: str) -> bool:
    """True if the first page of a task may be solved as it stands: nothing is to be selected, the submit button is to
    be pressed, or a field holds the value that the goal names."""
    page = read_page(observation)
    return (
        task in _BEGIN_SOLVED
        or "Select nothing " in page.goal
        or any(text.lower() == "submit" for text in page.quoted())
        or any(element.value and f" {element.value} " in page.goal for element in page.elements)
    )


def next_call(request: Request) -> str:
    """The expert's call in the state that a request shows; to wait, where the page lacks what it needs."""
    task = _TASK.search("\n".join(message.text for message in request.messages if message.role != "tool"))
    pages = [message.text for message in request.messages if message.role == "tool"]
    call: Call | None = None
    if task is not None and task[1] in EXPERTS and pages:
        try:
            call = EXPERTS[task[1]](read_page(pages[-1]))
        except (IndexError, ValueError):  # a page or a goal that was cut
            call = None
    return json.dumps(call or {"tool": "noop", "wait_ms": 100}, ensure_ascii=False, separators=(",", ":"))
