"""Constraints on values, declared on their field or option.

    Share = Annotated[float, Range(at_least=0, at_most=1)]

    @dataclass(frozen=True, kw_only=True)
    class RouterConfig:
        budget: Share = 0.2

        def __post_init__(self) -> None:
            check_fields("router", self)       # router.budget must be in [0, 1], got 1.5

Only the annotations define a range: `check_fields` enforces them, `r2v.config.reference` prints them, and the bad-input
tests draw their values from them. Numbers are always finite.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from r2v.console import printable
from r2v.errors import UsageError, nearest

LARGEST = 10**12
"""Largest number of any setting without another bound. Greater ones are typing errors, or overflow the integers of
libraries."""
_SHOWN = 120
"""Characters of a refused value in its error line."""


class Constraint(Protocol):
    """Condition on a value."""

    def allows(self, value: Any) -> bool:
        """True if the value is allowed. Never raises, for any type."""
        ...

    @property
    def text(self) -> str:
        """Description of the allowed values, to follow "must be"."""
        ...


@dataclass(frozen=True, kw_only=True)
class Range:
    """Finite number between two bounds, each included (`at_least`, `at_most`) or not (`above`, `below`)."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def allows(self, value: Any) -> bool:
        """True for a number within the bounds; never for a bool, NaN or an infinity."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and abs(value) <= (LARGEST if self.at_most is None else max(abs(self.at_most), LARGEST))
            and (self.at_most is None or value <= self.at_most)
        )

    @property
    def text(self) -> str:
        """Bounds, such as: in [0, 1]; above 0 and at most 1e12."""
        low, high = self._low, self.at_most if self.below is None else self.below
        most = f"{LARGEST:g}".replace("+", "")
        if low is None and high is None:
            return f"finite and at most {most} in size"
        if low is None:
            return f"{'at most' if self.below is None else 'below'} {high:g} and at least -{most}"
        if high is None:
            return f"{'at least' if self.above is None else 'above'} {low:g} and at most {most}"
        opening, closing = "[" if self.above is None else "(", "]" if self.below is None else ")"
        return f"in {opening}{_plain(low)}, {_plain(high)}{closing}"

    @property
    def _low(self) -> float | None:
        return self.at_least if self.above is None else self.above


@dataclass(frozen=True, kw_only=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def allows(self, value: Any) -> bool:
        """True for an allowed value of the same type: 1 is not true."""
        return any(value == item and type(value) is type(item) for item in self.values)

    @property
    def text(self) -> str:
        """List of the values."""
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in self.values]
        return f"{', '.join(words[:-1])} or {words[-1]}"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text of bounded length without control characters, which would reach terminals, logs and batch scripts; on one
    line, unless `lines`. It must fully match `pattern`, if there is one; `meaning` describes the pattern."""

    longest: int = 1000
    empty: bool = False
    lines: bool = False
    pattern: str = ""
    meaning: str = ""
    secret: bool = False
    """True if error lines must not repeat the value, because it may be a key in place of its name."""

    def allows(self, value: Any) -> bool:
        """True for such a text."""
        if not isinstance(value, str) or len(value) > self.longest:
            return False
        if not value:
            return self.empty
        flat = value.replace("\n", " ").replace("\t", " ") if self.lines else value
        if printable(flat) != flat or (not self.lines and re.search(r"[\n\t]", flat)):
            return False
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    @property
    def text(self) -> str:
        """Description of the text."""
        kind = self.meaning or f"{'text' if self.lines else 'one line of text'} without control characters"
        return f"{kind}, at most {self.longest} characters{', or empty' if self.empty else ''}"


@dataclass(frozen=True, kw_only=True)
class FileOrFolder:
    """Path of a file, a folder, or nothing, which its reader judges; not of a pipe or a device, nor of a folder with
    one, on which a reader could block."""

    def allows(self, value: Any) -> bool:
        """True unless opening the path, or an entry of its folder, can block. Names without a file are allowed."""
        try:
            path = Path(value)
            return not _waits(path) and not (path.is_dir() and any(map(_waits, path.iterdir())))
        except (OSError, ValueError, TypeError):
            return True

    @property
    def text(self) -> str:
        """Description of the allowed paths."""
        return "a file or a folder, with no pipe or device in it"


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """List without duplicates, and not empty unless `empty`."""

    empty: bool = False

    def allows(self, value: Any) -> bool:
        """True if no two elements are equal."""
        distinct = isinstance(value, (list, tuple)) and all(
            item not in value[:index] for index, item in enumerate(value)
        )
        return distinct and (bool(value) or self.empty)

    @property
    def text(self) -> str:
        """Description of the allowed lists."""
        return "distinct" if self.empty else "distinct and not empty"


@dataclass(frozen=True, kw_only=True)
class Keywords:
    """Keyword arguments: names, each with plain values (numbers, text, lists and mappings of them)."""

    deepest: int = 20

    def allows(self, value: Any) -> bool:
        """True if every key is an identifier and every value plain."""
        return isinstance(value, dict) and all(
            isinstance(key, str) and key.isidentifier() and self._plain(item, 0) for key, item in value.items()
        )

    def _plain(self, value: Any, depth: int) -> bool:
        match value:
            case None | bool():
                return True
            case int() | float():
                return _NUMBER.allows(value)
            case str():
                return _FREE_TEXT.allows(value)
            case list() | tuple():
                return depth < self.deepest and all(self._plain(item, depth + 1) for item in value)
            case dict():
                keys = all(isinstance(key, (str, int)) and _FREE_TEXT.allows(str(key)) for key in value)
                return depth < self.deepest and keys and all(self._plain(item, depth + 1) for item in value.values())
        return False

    @property
    def text(self) -> str:
        """Description of the allowed arguments."""
        return "keyword arguments with finite numbers and text without control characters"


@dataclass(frozen=True, kw_only=True)
class OrAuto:
    """Word, by default auto, or a value that another constraint allows."""

    rule: Range
    """Other constraint."""
    word: str = "auto"
    """Word that is always allowed."""

    def allows(self, value: Any) -> bool:
        """True if the value is the word, or the other constraint allows it."""
        return value == self.word if isinstance(value, str) else self.rule.allows(value)

    @property
    def text(self) -> str:
        """Word or description of the other constraint."""
        return f"{self.word} or {self.rule.text}"


_NUMBER = Range()
_FREE_TEXT = Text(longest=100_000, empty=True, lines=True)

NAME = Text(
    longest=200,
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    meaning="a name: letters, digits, . _ and -, not a path",
)
"""Name of a folder, a job or a tag: one component of a path."""

Count = Annotated[int, Range(above=0)]
"""Positive integer."""
CountOrNone = Annotated[int, Range(at_least=0)]
"""Integer of at least 0."""
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(at_least=0)]
Share = Annotated[float, Range(at_least=0, at_most=1)]
PositiveShare = Annotated[float, Range(above=0, at_most=1)]
Temperature = Annotated[float, Range(at_least=0, at_most=100)]
VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of names of environment variables."""
LARGEST_SEED = 2**63 - 1
Seed = Annotated[int, Range(at_least=0, at_most=LARGEST_SEED)]
Name = Annotated[str, NAME]
Line = Annotated[str, Text()]
"""Any text on one line, such as the name of a model."""
PathText = Annotated[str, Text(longest=4000), FileOrFolder()]
"""Path of a user's file or folder, or a name that may be one."""

Names = Annotated[list[Name], Distinct()]
Seeds = Annotated[list[Seed], Distinct()]
Budget = Annotated[float, Range(above=0, below=1)]
"""Share of steps in (0, 1)."""
Spec = Annotated[
    str,
    Text(
        longest=200,
        pattern=rf"{NAME.pattern}|\w[\w.-]*:[A-Za-z_]\w*",
        meaning="a name, or a path package.module:name",
    ),
]
"""A built-in name, or a dotted path that also names folders."""

RUNTIME = {"runtime": True}
"""Field metadata of keys that do not change results (paths, device, workers, retries): not in fingerprints."""
EVERYDAY_KEY = {"reader": "everyday"}
"""Field metadata of the keys that most projects set; the others are the cluster's if RUNTIME, else for research."""
IF_GIVEN = {"if_given": True}
"""Field metadata of a key that is in fingerprints only if set (not None, not {}), so that adding it changed none."""


def check_fields(stem: str, section: Any) -> None:
    """Check every field of a dataclass, nested ones included, against its annotations.

    Raises UsageError in one line: the dotted key below `stem`, the allowed values, and the value.
    """
    for name, hint in hints_of(typing.cast(Any, type(section))).items():
        _check(f"{stem}.{name}" if stem else name, hint, getattr(section, name))


def require(key: str, constraint: Constraint, value: Any) -> None:
    """Raise UsageError "<key> must be <allowed>, got <value>" if the constraint does not hold."""
    if not constraint.allows(value):
        hidden = isinstance(constraint, Text) and constraint.secret
        raise UsageError(f"{key} must be {constraint.text}, got {'something else' if hidden else shown(value)}")


def check(condition: bool, key: str, rule: str, got: object) -> None:
    """Raise UsageError "<key> <rule>, got <got>" if the condition does not hold."""
    if not condition:
        raise UsageError(f"{key} {rule}, got {shown(got)}")


def members(key: str, values: Iterable[str], allowed: Collection[str]) -> None:
    """Raise UsageError if a value is not allowed, with the key, the value, the allowed ones and the nearest of them."""
    for value in values:
        if value not in allowed:
            hint = nearest(value, allowed)
            remedy = f"; {hint}" if hint.startswith("did you mean") else ""
            raise UsageError(f"{key}: got {value}, allowed: {', '.join(allowed)}{remedy}")


def shown(value: Any, most: int = _SHOWN) -> str:
    """Return a value for an error line: printable, on one line, and cut after `most` characters."""
    text = printable(str(value)[: 2 * most]).replace("\n", "\\n").replace("\t", "\\t")
    return (f"{text[:most]}..." if len(text) > most else text) or "nothing"


def _check(key: str, hint: Any, value: Any) -> None:
    if value is None:
        return  # OmegaConf refuses it for a required field
    base, constraints = unwrap(hint)
    for constraint in constraints:
        require(key, constraint, value)
    if dataclasses.is_dataclass(value):
        check_fields(key, value)
    elif isinstance(value, (list, tuple)):
        element = (typing.get_args(base) or (Any,))[0]
        for item in value:
            _check(key, element, item)
    elif isinstance(value, dict) and typing.get_args(base):
        for name, item in value.items():
            _check(f"{key}.{name}", typing.get_args(base)[1], item)


def unwrap(hint: Any) -> tuple[Any, tuple[Constraint, ...]]:
    """Return a type without None, and its constraints: (int, (Range(above=0),)) for `Count | None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
        return unwrap(arms[0]) if len(arms) == 1 else (hint, ())
    if typing.get_origin(hint) is Annotated:
        base, *constraints = typing.get_args(hint)
        inner, more = unwrap(base)
        return inner, (*more, *constraints)
    return hint, ()


def declared(cls: type, stem: str = "") -> Iterator[tuple[str, Any, tuple[Constraint, ...]]]:
    """Yield (dotted key, type, constraints) of every field of a section that is not itself a section."""
    for name, hint in hints_of(cls).items():
        base, constraints = unwrap(hint)
        if dataclasses.is_dataclass(base):
            yield from declared(typing.cast(type, base), f"{stem}{name}.")
        else:
            yield f"{stem}{name}", base, constraints


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields, by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)}


def _waits(path: Path) -> bool:
    """True if opening the path can block (FIFO, device)."""
    return path.is_fifo() or path.is_char_device() or path.is_block_device()


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
