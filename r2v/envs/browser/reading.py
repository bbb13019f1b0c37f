"""Parser of a page's text: its goal and its elements in order."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_LINE = re.compile(r"""^( *)(?:\[(\w+)\] )?([\w-]+) ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(.*)$""")
_VALUE = re.compile(r""" value=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*)""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Element:
    """One line of the tree. `bid` is empty for an element without one."""

    bid: str
    role: str
    name: str
    value: str
    rest: str
    """Text of the element's properties: focused, checked='true', expanded=False."""

    def says(self, *words: str) -> bool:
        """True if the properties contain any of `words`."""
        return any(word in self.rest for word in words)


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed observation."""

    goal: str
    elements: tuple[Element, ...]

    def role(self, *roles: str) -> list[Element]:
        """Return the elements of these roles that have a bid, in the order of the page."""
        return [element for element in self.elements if element.role in roles and element.bid]

    def named(self, name: str, *roles: str) -> Element | None:
        """Return the first element with this name and a bid, of one of `roles` or, without roles, of any."""
        fitting = (element for element in self.elements if element.name == name and element.bid)
        return next((element for element in fitting if not roles or element.role in roles), None)

    def texts(self) -> list[str]:
        """Return the names of the plain-text elements."""
        return [element.name for element in self.elements if element.role == "StaticText"]

    def quoted(self) -> list[str]:
        """Return the parts of the goal between double quotes."""
        return re.findall(r'"([^"]*)"', self.goal)


def read_page(observation: str) -> Page:
    """Return the page of an observation; lines that are not elements are skipped."""
    goal, elements = "", []
    for line in observation.split("\n"):
        if line.startswith("goal: "):
            goal = line.removeprefix("goal: ")
        elif match := _LINE.match(line):
            value = _VALUE.match(match[5])
            elements.append(
                Element(
                    bid=match[2] or "",
                    role=match[3],
                    name=_plain(match[4]),
                    value=_plain(value[1]) if value else "",
                    rest=match[5],
                )
            )
    return Page(goal, tuple(elements))


def _plain(literal: str) -> str:
    """Return the value of a Python string literal, or the text itself if it is none."""
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal
