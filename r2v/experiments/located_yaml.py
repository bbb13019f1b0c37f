"""Located YAML: the plain values of a file, and the line on which each of them stands.

    tree = read_located(Path("configs/experiments/lr_sweep_mnist_mlp.yaml"))
    tree.value["sweep"]["lr"], tree.line("sweep", "lr")

Errors of a specification can so name their line. Numbers are read as R2V's configurations read them (1e-3 is one);
keys given twice are refused; `on`, `off`, `yes` and `no`, which YAML takes for true and false, are named in a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from r2v.config.sources import DEEPEST, LARGEST_FILE
from r2v.constraints import shown
from r2v.errors import InputError, UsageError
from r2v.log import logger

Keys = tuple[str | int, ...]
"""Where a value stands: keys and, within lists, positions."""

_WORDS = {"on", "off", "yes", "no", "y", "n"}
_FLOAT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class _Loader(yaml.SafeLoader):
    """Floats as people write them, and no dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith((":timestamp", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """Lists on one line, and texts that look like numbers quoted."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if _FLOAT.fullmatch(text) else None
    ),
)


_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


@dataclass(frozen=True)
class LocatedTree:
    """What a file says, and where."""

    path: Path
    value: dict[str, Any]
    lines: dict[Keys, int] = field(default_factory=dict)

    def line(self, *keys: str | int) -> int:
        """The line of a value, or of the nearest one above it that stands in the file."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def refuse(self, problem: str, *keys: str | int) -> NoReturn:
        """Raises UsageError naming file, line and key."""
        stem = f"{'.'.join(map(str, keys))}: " if keys else ""
        raise UsageError(f"{self.path} line {self.line(*keys)}: {stem}{problem}")


def read_located(path: Path) -> LocatedTree:
    """Read a YAML file of keys and values. Raises InputError where there is no such file, UsageError with the line
    where it is no such YAML."""
    text = _text(path)
    try:
        _require_shallow(path, text)
        node = yaml.compose(text, Loader=_Loader)
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path} line 1: must be keys with values, such as `name: lr_sweep`")
        lines: dict[Keys, int] = {}
        for keys, inner in _nodes(path, node, ()):
            lines[keys] = inner.start_mark.line + 1
        loader = _Loader("")
        value = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UsageError(f"{path} line {mark.line + 1 if mark else 1}: not YAML: {shown(problem)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not YAML: {shown(str(error))}") from None
    return LocatedTree(path, value, lines)


def plain_yaml(value: dict[str, Any]) -> str:
    """Plain values as YAML that `read_located` and R2V's configurations read back the same, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; name a YAML file") from None
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{path}: larger than {LARGEST_FILE} bytes; no specification is")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None


def _require_shallow(path: Path, text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{path} line {_line(event)}: aliases are not read; write the value again")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UsageError(f"{path} line {_line(event)}: nested more deeply than {DEEPEST} levels")


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1


def _nodes(path: Path, node: yaml.Node, keys: Keys) -> Iterator[tuple[Keys, yaml.Node]]:
    """Every value with its keys. Raises UsageError for a key that is given twice or is no text."""
    if keys:
        yield keys, node
    if isinstance(node, yaml.MappingNode):
        given = set()
        for key, value in node.value:
            name = _key(path, key)
            if name in given:
                raise UsageError(f"{path} line {key.start_mark.line + 1}: {name} is given twice")
            given.add(name)
            yield from _nodes(path, value, (*keys, name))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _nodes(path, item, (*keys, index))
    elif node.tag.endswith(":bool") and node.value.lower() in _WORDS:
        logger.warning(
            "%s line %d: %s: YAML reads %s as %s; quote it where the word itself is meant",
            path,
            node.start_mark.line + 1,
            ".".join(map(str, keys)),
            node.value,
            str(node.value.lower() in ("on", "yes", "y")).lower(),
        )


def _key(path: Path, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.tag.endswith(":str"):
        raise UsageError(
            f"{path} line {node.start_mark.line + 1}: the key {shown(str(getattr(node, 'value', '')))} is no text; "
            "quote it"
        )
    return str(node.value)
