"""Scripted experts for MiniWoB++ tasks, the stand-in teacher of `miniwob`.

Each chooses the next call from the goal and the page's text, as a model does, without the pages' own code. If a
perturbed page lacks the element it needs, it waits and looks again.
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


def _filled(page: Page, values: list[str]) -> Call | None:
    """Fill the page's text fields with the values, one per call, then press the button."""
    fields = page.role(*_TEXT_ROLES)
    if len(fields) < len(values):
        return None
    for field, value in zip(fields, values, strict=False):
        if field.value != value:
            return _fill(field, value)
    return _button(page, "Submit")


def _quoted_button(page: Page) -> Call | None:
    return _button(page, page.quoted()[0])


def _sequence(page: Page) -> Call | None:
    first = page.named("ONE", "button")
    return _click(page.named("TWO", "button") if first is not None and first.says("focused") else first)


def _dialog(page: Page) -> Call | None:
    name = page.quoted()[0]
    return _button(page, "Close" if name == "x" else name)


def _tab(page: Page) -> Call | None:
    match = re.search(r"Tab #\d+", page.goal)
    return _click(page.named(match[0], "link", "tab")) if match else None


def _find_in_tabs(page: Page) -> Call | None:
    """Click the quoted word if this tab shows it, else the next tab."""
    if (element := page.named(page.quoted()[0])) is not None:
        return _click(element)
    tabs = page.role("tab")
    here = next((index for index, tab in enumerate(tabs) if tab.says("selected=True")), -1)
    return _click(page.named(tabs[(here + 1) % len(tabs)].name, "link")) if tabs else None


def _find_in_sections(page: Page) -> Call | None:
    """Click the quoted word if an open section shows it, else the section after the open one."""
    if (element := page.named(page.quoted()[0])) is not None:
        return _click(element)
    sections = page.role("tab")
    here = next((index for index, section in enumerate(sections) if section.says("expanded=True")), -1)
    return _click(sections[(here + 1) % len(sections)]) if sections else None


def _selected_names(page: Page) -> list[str]:
    """Return the names in 'Select A, B and click Submit.'"""
    match = re.match(r"Select (.*?)(?: from the (?:scroll )?list)? and click Submit", page.goal)
    return [] if match is None or match[1] == "nothing" else match[1].split(", ")


def _checkboxes(page: Page) -> Call | None:
    names = _selected_names(page)
    boxes = page.role("checkbox")
    if any(page.named(name, "checkbox") is None for name in names):
        return None
    wrong = (box for box in boxes if box.says("checked='true'") != (box.name in names))
    return _click(next(wrong, None)) or _button(page, "Submit")


def _option(page: Page) -> Call | None:
    radio = page.named(_selected_names(page)[0], "radio")
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
    # Both kinds have the role textbox; the text area is the later one on these pages.
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


def _entered(page: Page, role: str, value: str) -> Call | None:
    """Enter the value into the field of this role, then press the button."""
    field = next(iter(page.role(role)), None)
    if field is None:
        return None
    return _button(page, "Submit") if field.value == value else _fill(field, value)


def _date(page: Page) -> Call | None:
    match = re.search(r"(\d\d)/(\d\d)/(\d{4})", page.goal)
    if match is None:
        return None
    return _entered(page, "Date", datetime.date(int(match[3]), int(match[1]), int(match[2])).isoformat())


def _time(page: Page) -> Call | None:
    match = re.search(r"(\d+):(\d\d) ([AP])M", page.goal)
    if match is None:
        return None
    return _entered(page, "InputTime", f"{int(match[1]) % 12 + 12 * (match[3] == 'P'):02d}:{match[2]}")


def _focus(page: Page) -> Call | None:
    number = re.search(r"the (\d)", page.goal)
    fields = page.role(*_TEXT_ROLES)
    index = int(number[1]) - 1 if number else 0
    return {"tool": "focus", "bid": fields[index].bid} if index < len(fields) else None


def _list(page: Page) -> Call | None:
    box = next(iter(page.role("combobox")), None)
    if box is None:
        return None
    name = _selected_names(page)[0]
    if box.value == name:
        return _button(page, "Submit")
    return {"tool": "select_option", "bid": box.bid, "options": name}


def _scroll_list(page: Page) -> Call | None:
    box = next(iter(page.role("listbox")), None)
    names = _selected_names(page)
    if box is None or not names:
        return None
    if all((option := page.named(name, "option")) and option.says("selected=True") for name in names):
        return _button(page, "Submit")
    return {"tool": "select_option", "bid": box.bid, "options": names[0] if len(names) == 1 else names}


def _word(page: Page) -> Call | None:
    match = re.search(r"Find the (\d+)", page.goal)
    words = re.findall(r"\w+", " ".join(page.texts()))
    return _filled(page, [words[int(match[1]) - 1]]) if match and len(words) >= int(match[1]) else None


def _arithmetic(page: Page) -> Call | None:
    match = re.search(r"(-?\d+) *([-+x]) *(-?\d+)", " ".join(page.texts()))
    if match is None:
        return None
    left, right = int(match[1]), int(match[3])
    result = {"+": left + right, "-": left - right, "x": left * right}[match[2]]
    return _filled(page, [str(result)])


def _algebra(page: Page) -> Call | None:
    match = re.search(r"(x|-?\d+) *([-+]) *(x|-?\d+) *= *(-?\d+)", " ".join(page.texts()))
    if match is None:
        return None
    sign, right = (1 if match[2] == "+" else -1), int(match[4])
    x = right - sign * int(match[3]) if match[1] == "x" else sign * (right - int(match[1]))
    return _filled(page, [str(x)])


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
    "click-link": lambda page: _click(page.named(page.quoted()[0])),
    "click-option": _option,
    "click-scroll-list": _scroll_list,
    "click-tab": _tab,
    "click-tab-2": _find_in_tabs,
    "click-tab-2-easy": _find_in_tabs,
    "click-tab-2-hard": _find_in_tabs,
    "click-tab-2-medium": _find_in_tabs,
    "click-test": lambda page: _click(next(iter(page.role("button")), None)),
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
    "text-transform": lambda page: _filled(page, ["".join(element.name for element in page.role("StaticText"))]),
    "unicode-test": _quoted_button,
}
"""Expert by MiniWoB++ task."""
_BEGIN_SOLVED = ("drag-box", "drag-cube", "generate-number")
"""The box may already be inside, the cube may show the requested side, and an empty number counts as even."""


def hand_in(request: Request) -> str:
    """Return the call that submits the page unchanged: press its submit button, else wait."""
    page = _latest_page(request)
    return _line(_button(page, "Submit") or _button(page, "submit"))


def begins_solved(task: str, observation: str) -> bool:
    """True if a task may be solved on its first page: the goal selects nothing, asks for the submit button alone, or
    names a value that a field already holds."""
    page = read_page(observation)
    return (
        task in _BEGIN_SOLVED
        or "Select nothing " in page.goal
        or any(text.lower() == "submit" for text in page.quoted())
        or any(element.value and f" {element.value} " in page.goal for element in page.elements)
    )


def next_call(request: Request) -> str:
    """Return the expert's call for a request's latest page; a wait if the page lacks the needed element."""
    task = _TASK.search("\n".join(message.text for message in request.messages if message.role != "tool"))
    if task is None or task[1] not in EXPERTS:
        return _line(None)
    try:
        return _line(EXPERTS[task[1]](_latest_page(request)))
    except (IndexError, ValueError):  # a perturbation cut the page or the goal
        return _line(None)


def _latest_page(request: Request) -> Page:
    pages = [message.text for message in request.messages if message.role == "tool"]
    return read_page(pages[-1] if pages else "")


def _line(call: Call | None) -> str:
    """Return the action of a call; a wait without one."""
    return json.dumps(call or {"tool": "noop", "wait_ms": 100}, ensure_ascii=False, separators=(",", ":"))
