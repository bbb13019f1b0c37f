"""Seed 003 as data: its headings, its fenced blocks, and the command lines in them, as typed there.

`seed_003.md` is the seed itself, byte for byte (SHA256 below). Rows of these tests take their commands and Python
blocks from it; only `stand_in` ever changes one: missing parts are replaced by the bundled benchmark, and five hundred
episodes by a handful.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

TEXT = (Path(__file__).parent / "seed_003.md").read_text()
SHA256 = "db9ea2f313664f7875c0a6f9328acaedfcb9a165246bbf8b9c4d75c0b92dc425"

STAND_INS = {
    "configs/webarena/": "configs/desk/",
    "configs/swebench/": "configs/desk/",
    "webarena_openai_gpt-4o_20260218T210012": "desk_scripted_expert-v1_20260218T210012",
    "--num-episodes 500": "--num-episodes 4",
    "--num-episodes 100": "--num-episodes 4",
    "/tmp/test_policy": "test_policy",
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its heading, its language ("" for none), its text."""

    heading: str
    language: str
    text: str


def _blocks() -> tuple[Block, ...]:
    found = re.finditer(r"^#{2,3} (?P<heading>[^\n]+)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", TEXT, re.M | re.S)
    heading, blocks = "", []
    for match in found:
        if match["heading"]:
            heading = match["heading"]
        else:
            blocks.append(Block(heading=heading, language=match["language"], text=match["text"]))
    return tuple(blocks)


BLOCKS = _blocks()


def block(heading: str, language: str = "bash", index: int = 0) -> str:
    """Return the text of the heading's index-th block in this language."""
    return [one.text for one in BLOCKS if (one.heading, one.language) == (heading, language)][index]


def commands(text: str) -> list[list[str]]:
    """Return the command lines of a block, as words: continuations joined, comments left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def stand_in(text: str) -> str:
    """Return a command with the bundled benchmark as a stand-in."""
    for seed, here in STAND_INS.items():
        text = text.replace(seed, here)
    return text
