"""The pages for readers, and their contents: commands, Python and YAML in fenced blocks, in their order."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(path for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")))
PLACEHOLDER = re.compile(r"<[\w ]+>|\.\.\.|\u2026")
"""Placeholders for the reader's own values."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Return the command lines of a shell block: continuations joined, comments left out."""
        lines = [line.strip() for line in self.text.replace("\\\n", " ").splitlines()]
        return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order; "sh" and "console" are shell blocks too."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    languages = {"sh": "bash", "console": "bash"}
    name = page.relative_to(REPOSITORY).as_posix()
    return [Block(page=name, language=languages.get(language, language), text=text) for language, text in found]


def spans_of(page: Path) -> list[str]:
    """Return the code spans of a page, outside its fenced blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S))
