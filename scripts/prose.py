"""Measure the rules of prose: `python scripts/prose.py` prints each figure with its limit; `--list` adds the places.

Exit code 1 if a limit is missed. The rules are in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE, PAGES = Path("r2v"), (Path("docs"), Path("README.md"), Path("CONTRIBUTING.md"), Path("CHANGELOG.md"))
AROUND = (Path("tests"), Path("benchmarks"), Path("scripts"), Path("examples"))
"""Folders of which only the docstrings' first words are checked."""
SUBTLE = ("llm/providers", "slurm", "storage", "rollout", "serve")
"""Folders of the package in which every race, retry and unit needs a reason."""
FILLERS = frozenset(
    ("found", "one", "told", "place", "wanted", "asked", "said", "known", "taken", "made", "kept", "these", "those")
)
"""Names that do not describe their value."""
RIDDLE = re.compile(r"(What|Whether|Who|Whose|Where|Which|How|Why)\b")
"""First word of a docstring that does not name its concept."""
RETURNING = re.compile(
    r"\b(passed over|not looked after|left to the next look|it is left|rivals?|whoever|outsiders' mark|(?<!\")purse|"
    r"crowd|lifelines?|strands?|allotments?|gatherings?)\b",
    re.I,
)
"""Words that were replaced and must not come back."""
LOG_LEVELS = frozenset(("debug", "info", "warning", "error", "exception"))
VALUE = re.compile(r"[\w.]+=\S*")
"""`key=value` in the format of a log line; after the last key free text may follow."""
WIDTH = 120


LIMITS = {
    "docstrings that begin as riddles": 0.5,
    "names that say nothing": 1.5,
    "log lines that are no event: key=value": 0.0,
    "words that must not return": 0.0,
    "wide lines of pages": 0.0,
}
"""Rule -> most allowed: percent for docstrings and names, a count for the others."""


@dataclass
class Prose:
    """Counts over the files read, and the places that break a rule."""

    words: int = 0
    whats: int = 0
    functions: int = 0
    names: int = 0
    places: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in LIMITS})
    comments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUBTLE, 0))
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SUBTLE, 0))

    def read(self, path: Path) -> None:
        """Count one module of the package."""
        source = path.read_text()
        tree = ast.parse(source)
        comments = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if _says_why(token)]
        texts = [token.string for token in comments]
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                head = ast.get_docstring(node) or ""
                texts.append(head)
                self._head(path, node, head)
            elif isinstance(node, (ast.Name, ast.arg)):
                self._name(path, node)
            elif isinstance(node, ast.Call) and (text := log_format(node)) is not None and not is_event(text):
                self._add("log lines that are no event: key=value", path, node.lineno, text)
        text = " ".join(texts)
        self.words += len(text.split())
        self.whats += len(re.findall(r"\bwhat\b", text, re.I))
        for number, line in enumerate(source.splitlines(), 1):
            if match := RETURNING.search(line):
                self._add("words that must not return", path, number, match[0])
        for room in SUBTLE:
            if path.is_relative_to(PACKAGE / room):
                self.comments[room] += len(comments)
                self.lines[room] += sum(bool(line.strip()) for line in source.splitlines())

    def read_heads(self, path: Path) -> None:
        """Check the docstrings of a module outside the package."""
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                self._head(path, node, ast.get_docstring(node) or "")

    def _head(
        self, path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, head: str
    ) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and head:
            self.functions += 1
            if RIDDLE.match(head):
                self._add("docstrings that begin as riddles", path, node.lineno, head.splitlines()[0])

    def _name(self, path: Path, node: ast.Name | ast.arg) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            return
        self.names += 1
        name = node.arg if isinstance(node, ast.arg) else node.id
        if name.strip("_") in FILLERS:
            self._add("names that say nothing", path, node.lineno, name)

    def page(self, path: Path) -> None:
        """Count one page: lines of prose that are too wide."""
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if len(line) > WIDTH and not fenced and not line.lstrip().startswith("|") and "](" not in line:
                self._add("wide lines of pages", path, number, "")

    def _add(self, kind: str, path: Path, line: int, text: str) -> None:
        self.places[kind].append(f"{path}:{line} {text[:80]}")

    def figures(self) -> Iterator[tuple[str, float, float]]:
        """Yield (rule, figure, limit); the figure may not exceed the limit."""
        yield '"what" in 10,000 words of docstrings and comments', 1e4 * self.whats / max(1, self.words), 15
        totals = {"docstrings that begin as riddles": self.functions, "names that say nothing": self.names}
        for kind, limit in LIMITS.items():
            count = len(self.places[kind])
            yield kind, 100 * count / max(1, totals[kind]) if kind in totals else count, limit
        for room in SUBTLE:
            rate = 100 * self.comments[room] / max(1, self.lines[room])
            yield f"lines of {room} without a comment, of 100", 100 - rate, 98


def log_format(call: ast.Call) -> str | None:
    """Return the literal format of a log line; None for another call."""
    of_log = isinstance(call.func, ast.Attribute) and call.func.attr in LOG_LEVELS
    if not of_log or not isinstance(call.func.value, ast.Name) or call.func.value.id not in ("logger", "log"):  # type: ignore[attr-defined]
        return None
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def is_event(text: str) -> bool:
    """True if every conversion of a log format is the value of a key, or follows the last key."""
    return "%" not in VALUE.sub("", text).replace("%%", "")


def _says_why(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT and not re.match(r"#\s*(type|noqa|pragma|!)", token.string)


def measured() -> Prose:
    """Measure the prose of this checkout."""
    prose = Prose()
    for path in sorted(PACKAGE.rglob("*.py")):
        prose.read(path)
    for path in sorted(path for root in AROUND for path in root.rglob("*.py")):
        prose.read_heads(path)
    for root in PAGES:
        for path in [root] if root.is_file() else sorted(root.rglob("*.md")):
            prose.page(path)
    return prose


def main() -> int:
    """Print every figure, with `--list` the places; return 1 if a limit is missed."""
    prose = measured()
    figures = list(prose.figures())
    for rule, figure, limit in figures:
        print(f"{figure:8.2f}  at most {limit:5.1f}  {rule}" + ("" if figure <= limit else "  MISSED"))
    for kind, places in prose.places.items() if "--list" in sys.argv else ():
        print(f"\n{kind}:", *places, sep="\n  ")
    return int(any(figure > limit for _, figure, limit in figures))


if __name__ == "__main__":
    sys.exit(main())
