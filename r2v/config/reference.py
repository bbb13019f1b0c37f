"""The configuration reference: every key with its type, default, allowed values and meaning.

Types, defaults and constraints are those of the declarations that `load` enforces, meanings of the docstrings there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from r2v.config import Config
from r2v.constraints import Constraint, unwrap

READERS = {
    "everyday": "### Everyday keys",
    "cluster": "### Keys of where and how it runs",
    "research": "### Keys of research",
}
"""Reader -> heading of its table. Keys of the cluster change no result."""
_SENTENCE = re.compile(r"(?<=[\w)`][\w)`])\.\s")


@dataclass(frozen=True, kw_only=True)
class ConfigKey:
    """One key of the configuration."""

    key: str
    """Dotted key, as in `--overrides`."""
    type: str
    """Type as text, such as list of int."""
    default: str
    """Default as YAML."""
    allowed: str
    """Allowed values as text; "" if the type says all."""
    meaning: str
    """The docstring under the field."""
    runtime: bool
    """True if it changes no result and is in no fingerprint."""
    reader: str
    """The people who set it: one of `READERS`."""


def reference() -> list[ConfigKey]:
    """Return every key, in the order of the sections."""
    return list(_of(Config, Config(), ""))


def markdown(*, short: bool = False) -> str:
    """Return the reference in Markdown, a table for each of `READERS`; if `short`, with the first sentence of each
    meaning, as in docs/configuration.md."""
    rows = reference()
    return "\n\n".join(
        f"{title}\n\n{_table([row for row in rows if row.reader == reader], short=short)}"
        for reader, title in READERS.items()
    )


def _table(rows: Sequence[ConfigKey], *, short: bool) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        kind = row.allowed if row.type == "one of" else row.type
        kind = kind if short or row.type == "one of" or not row.allowed else f"{kind}; {row.allowed}"
        meaning = _SENTENCE.split(row.meaning)[0].rstrip(".") if short else row.meaning
        cells = (f"`{row.key}`", kind, f"`{row.default}`", meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _of(cls: type, values: Any, stem: str) -> Iterator[ConfigKey]:
    hints, meanings = typing.get_type_hints(cls, include_extras=True), _docstrings(cls)
    for item in dataclasses.fields(cls):
        base, constraints = unwrap(hints[item.name])
        value, runtime = getattr(values, item.name), bool(item.metadata.get("runtime"))
        if dataclasses.is_dataclass(base):
            yield from _of(typing.cast(type, base), value, f"{stem}{item.name}.")
            continue
        yield ConfigKey(
            key=f"{stem}{item.name}",
            type=_type(base),
            default=_plain(value),
            allowed=_allowed(base, constraints),
            meaning=meanings.get(item.name, ""),
            runtime=runtime,
            reader=item.metadata.get("reader", "cluster" if runtime else "research"),
        )


def _allowed(base: Any, constraints: tuple[Constraint, ...]) -> str:
    if typing.get_origin(base) is Literal:
        return ", ".join(map(str, typing.get_args(base)))
    texts = [constraint.text for constraint in constraints]
    if typing.get_origin(base) is list:
        inner = _allowed(*unwrap(typing.get_args(base)[0]))
        texts += [f"each {inner}"] if inner else []
    return "; ".join(texts)


def _type(base: Any) -> str:
    origin, inner = typing.get_origin(base), typing.get_args(base)
    if origin is Literal:
        return "one of"
    if origin is list:
        return f"list of {_type(unwrap(inner[0])[0])}"
    return "mapping" if origin is dict else getattr(base, "__name__", " or ".join(part.__name__ for part in inner))


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return str(value) if value != "" else '""'


def _docstrings(cls: type) -> dict[str, str]:
    """Return field -> the docstring under it, on one line; fields of base classes included."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for item, following in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                docs[item.target.id] = " ".join(str(following.value.value).split())
    return docs
