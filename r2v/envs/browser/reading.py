"""Reading a page as text: its goal, its elements and what is said of each, in order."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_LINE = re.compile(r"""^( *)(?:\[(\w+)\] )?([\w-]+) ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(.*)$""")
_VALUE = re.compile(r""" value=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,]*)""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Element:
    """One line of the tree. `bid` is empty where none can be named."""

    bid: str
    role: str
    name: str
    value: str
    rest: str
    """What is said of it: focused, checked='true', expanded=False."""

    def says(self, *words: str) -> bool:
        """Whether one of these is said of it."""
        return any(word in self.rest for word in words)


@dataclass(frozen=True, slots=True)
class Page:
    """An observation."""

    goal: str
    elements: tuple[Element, ...]

    def role(self, *roles: str) -> list[Element]:
        """Elements of these roles that can be named, in the order of the page."""
        return [element for element in self.elements if element.role in roles and element.bid]

    def named(self, name: str, *roles: str) -> Element | None:
        """The first element that can be named and has this name, of one of these roles or of any."""
        fitting = (element for element in self.elements if element.name == name and element.bid)
        return next((element for element in fitting if not roles or element.role in roles), None)

    def texts(self) -> list[str]:
        """Plain text, piece by piece."""
        return [element.name for element in self.elements if element.role == "StaticText"]

    def quoted(self) -> list[str]:
        """What the goal has between double quotes."""
        return re.findall(r'"([^"]*)"', self.goal)


def read_page(observation: str) -> Page:
    """The page that an observation shows; lines that are no elements are passed over."""
    goal, elements = "", []
    for line in observation.split("\n"):
        if line.startswith("goal: "):
            goal = line.removeprefix("goal: ")
        elif found := _LINE.match(line):
            value = _VALUE.match(found[5])
            elements.append(
                Element(
                    bid=found[2] or "",
                    role=found[3],
                    name=_plain(found[4]),
                    value=_plain(value[1]) if value else "",
                    rest=found[5],
                )
            )
    return Page(goal, tuple(elements))


def _plain(literal: str) -> str:
    """The text that a Python literal stands for, or the text itself."""
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal
