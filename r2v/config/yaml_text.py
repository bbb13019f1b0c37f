"""YAML: the reader of configurations, site profiles, experiments and points, and the writer.

    document = read_file(Path("configs/experiments/lr_sweep_mnist_mlp.yaml"))
    document.value["sweep"], document.line("sweep", "lr")     # scalars without quotes are `Unquoted`: their text
    as_type(document.value, Config)                           # a text field holds that text, a float field its number

It reads YAML 1.2's core schema with one exception: digits after a leading zero are text. So `24:00:00`, `0123`, `on`
and `no` are text and `1e-4` is a number. The declared type decides: a text field keeps `1e3` and `0123` unchanged, a
numeric field reads `0123` as 123, and a boolean field accepts `on` and `no`. Anchors, aliases and merges are read, tags
are refused. Readers of YAML 1.1 and of 1.2 agree on the output of `write`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from r2v.constraints import hints_of, shown, unwrap
from r2v.errors import InputError, UsageError

LARGEST_FILE = 1_000_000
"""Maximum bytes of a file; R2V's largest has some 2,000."""
DEEPEST = 20
"""Maximum nesting depth; the defaults of a configuration have three levels."""
_MOST_VALUES = 20_000
"""Maximum number of values, those repeated by aliases included."""
_MOST_DIGITS = 4000
"""Maximum digits of an integer: Python refuses 4,300."""

Keys = tuple[str | int, ...]
"""Keys and, within lists, positions: the path to a value."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{f"{sign}.{inf}": float(f"{sign}inf") for sign in ("", "+", "-") for inf in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_TRUTHS = {**dict.fromkeys(("yes", "y", "on"), True), **dict.fromkeys(("no", "n", "off"), False)}
"""Words that are text except in a boolean field."""
_AMBIGUOUS = re.compile(
    r"[yn]|[-+]?(nan|inf(inity)?|0b[01_]+|0o?[0-7_]+|0x[0-9a-f_]+|[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?(e[-+]?[0-9]+)?"
    r"|\.[0-9_]+(e[-+]?[0-9]+)?)",
    re.IGNORECASE,
)
"""Text that PyYAML would not quote, and that some reader would not read as text."""


class Unquoted(str):
    """The text of a scalar without quotes."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Unquoted:
        return self


@dataclass(frozen=True)
class Document:
    """The content of a file, and the line of each value in it."""

    source: Path | str
    """The file, or the words of a command line, which have no lines."""
    value: Any
    """A mapping, a list, or a scalar."""
    lines: dict[Keys, int] = field(default_factory=dict)
    """The line of each value."""

    def line(self, *keys: str | int) -> int:
        """Return the line of a value, or of its nearest parent in the file."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def refuse(self, problem: str, *keys: str | int) -> NoReturn:
        """Raise UsageError naming file, line and key."""
        stem = f"{'.'.join(map(str, keys))}: " if keys else ""
        raise UsageError(f"{_at(self.source, self.line(*keys))}: {stem}{problem}")

    def mapping(self) -> dict[str, Any]:
        """Return the mapping; {} for an empty file. Raise UsageError for a list or a scalar."""
        if isinstance(self.value, dict):
            return self.value
        if plain(self.value) is None:
            return {}
        got = "a list" if isinstance(self.value, list) else shown(self.value)
        return self.refuse(f"must be keys with values, such as `training: {{lr: 1e-3}}`, got {got}")


def read_file(path: Path) -> Document:
    """Read a mapping with text keys. Raise InputError for a missing file, UsageError with the line for other YAML."""
    document = read(file_text(path), path)
    for keys in document.lines:
        if keys and isinstance(keys[-1], Unquoted) and not isinstance(plain(keys[-1]), str):
            document.refuse(f"the key {shown(keys[-1])} is no text; quote it", *keys)
    return dataclasses.replace(document, value=document.mapping())


def file_text(path: Path) -> str:
    """Return the text of a file. Raise InputError if it is missing, UsageError if it is too large or not UTF-8."""
    try:
        if not path.exists():
            raise InputError(f"{shown(path)}: no such file; name a YAML file")
        if not path.is_file():
            raise InputError(f"{shown(path)}: not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{shown(path)}: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{path}: larger than {LARGEST_FILE} bytes; no file of this kind is")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not YAML: {error.reason} at byte {error.start}, UTF-8 is read") from None


def read(text: str, source: Path | str) -> Document:
    """Parse a text. Raise UsageError naming the source, and the line of a file, for invalid or refused YAML."""
    import yaml

    loader = yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader
    depth = 0
    try:
        # Events first: libyaml builds trees by recursion in C, and a deep one crashes the process.
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                _refuse(source, event, f"nested more deeply than {DEEPEST} levels")
            if (tag := getattr(event, "tag", None)) is not None:
                _refuse(source, event, f"the tag {shown(tag)} is not read; leave it out, or quote a text")
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, (error.context, error.problem)))
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{_at(source, line)}: not YAML: {shown(problem)}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not YAML: {shown(' '.join(str(error).split()))}") from None
    lines: dict[Keys, int] = {}
    return Document(source, Unquoted() if node is None else _built(source, node, (), lines), lines)


def _built(source: Path | str, node: Any, keys: Keys, lines: dict[Keys, int]) -> Any:
    """Return the values of a node, aliases expanded, and add their lines to `lines`."""
    lines[keys] = node.start_mark.line + 1
    if len(lines) > _MOST_VALUES:
        _refuse(source, node, f"more than {_MOST_VALUES} values, those of aliases included")
    if node.id == "scalar":
        return _scalar(source, node)
    if len(keys) >= DEEPEST:
        _refuse(source, node, f"nested more deeply than {DEEPEST} levels")
    if node.id == "sequence":
        return [_built(source, item, (*keys, index), lines) for index, item in enumerate(node.value)]
    own: dict[str, Any] = {}
    for named, item in node.value:
        if named.id != "scalar":
            _refuse(source, named, "a key must be text or a number")
        key = _scalar(source, named)
        if key in own:
            _refuse(source, named, f"duplicate key {shown(key)}: it is given twice")
        own[key] = _built(source, item, (*keys, key), lines)
    if not any(isinstance(key, Unquoted) and key == "<<" for key in own):
        return own
    merged: dict[str, Any] = {}
    inherited = own.pop("<<")
    for part in inherited if isinstance(inherited, list) else [inherited]:
        if not isinstance(part, dict):
            _refuse(source, node, "<< merges keys with values, or a list of such")
        merged = {**part, **merged}
    return {**merged, **own}


def _scalar(source: Path | str, node: Any) -> str:
    if node.style:
        return str(node.value)
    if len(node.value) > _MOST_DIGITS and node.value.lstrip("-+").isdigit():
        _refuse(source, node, "a number of thousands of digits")
    return Unquoted(node.value)


def _refuse(source: Path | str, where: Any, problem: str) -> NoReturn:
    raise UsageError(f"{_at(source, where.start_mark.line + 1)}: {problem}")


def _at(source: Path | str, line: int) -> str:
    return f"{source} line {line}" if isinstance(source, Path) else source


def plain(written: Any) -> Any:
    """Return parsed values as plain ones, without declared types."""
    return as_type(written, Any)


def as_type(written: Any, hint: Any) -> Any:
    """Return parsed values as plain values of a declared type; a value of another type stays unchanged."""
    base, _ = unwrap(hint)
    inner = typing.get_args(base)
    if isinstance(written, dict):
        if dataclasses.is_dataclass(base):
            hints = hints_of(typing.cast(Any, base))
            return {str(key): as_type(item, hints.get(key, Any)) for key, item in written.items()}
        if len(inner) == 2:
            return {str(key): as_type(item, inner[1]) for key, item in written.items()}
        return {plain(key): plain(item) for key, item in written.items()}
    if isinstance(written, list):
        return [as_type(item, inner[0] if inner else Any) for item in written]
    return _as_scalar(written, base, inner) if isinstance(written, Unquoted) else written


def _as_scalar(text: Unquoted, base: Any, inner: tuple[Any, ...]) -> Any:
    value = _value(text)
    if value is None:
        return None
    if base is str or typing.get_origin(base) is Literal:
        return str(text)
    if base is bool and isinstance(value, int):
        return bool(value)
    if isinstance(value, str) and (base is bool or bool in inner):
        return _TRUTHS.get(value.lower(), value)
    if isinstance(value, str) and base in (int, float):
        try:
            return base(value)  # 0123 and 1_000 are numbers only here
        except ValueError:
            return value
    return value


def _value(text: str) -> Any:
    """Return the value of an unquoted text without a declared type."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else str(text)


def write(value: Any) -> str:
    """Return plain values as YAML, keys in order. Text that a reader of YAML 1.1 or 1.2 might convert is quoted."""
    import yaml

    return yaml.dump(value, Dumper=_dumper(), allow_unicode=True, sort_keys=False)


@functools.cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
        """Own class, as representers belong to a class. PyYAML itself quotes YAML 1.1's words, numbers and dates."""

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="'" if _AMBIGUOUS.fullmatch(text) else None
        ),
    )
    return Dumper
