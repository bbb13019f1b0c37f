"""Conditions on a point's configuration: what must hold in it, and which points a filter means.

    holds("len(lambda_ace) == layers - 1", {"layers": 4, "lambda_ace": [0.1, 0.1, 0.1]})     # True
    holds("model != 'greedy' or len(lambda_ace) == layers - 1", config)

A check is an expression over the configuration's keys: literals, arithmetic, comparisons, `and`, `or`, `not`, `in`,
`len`, `min`, `max`, `sum`; dots and brackets reach into sections and lists. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from r2v.constraints import shown
from r2v.errors import UsageError

_LONGEST = 500
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, values: item in values,
    ast.NotIn: lambda item, values: item not in values,
}
_CALLS: dict[str, Callable[..., Any]] = {"len": len, "min": min, "max": max, "sum": sum, "abs": abs}
_NAMES = {"true": True, "false": False, "null": None}
_MISSING = object()


def require_check(text: str) -> None:
    """Raises UsageError where a check is no expression that can be evaluated."""
    _parsed(text)


def holds(text: str, config: Mapping[str, Any]) -> bool:
    """Whether a check holds in a configuration. Raises UsageError where it cannot be told: a key is missing, or types
    do not go together."""
    try:
        return bool(_value(_parsed(text), config))
    except (TypeError, ZeroDivisionError, IndexError, KeyError, ValueError) as error:
        raise UsageError(f"{text}: cannot be told: {error}") from None


def matches(condition: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a configuration has all of these values: key -> value, or a list of which it is one."""
    return all(_is(at(config, key), wanted) for key, wanted in condition.items())


def at(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; an object like no value where there is none."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def has(config: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has a dotted key."""
    return at(config, key) is not _MISSING


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) and not isinstance(value, list):
        return any(_is(value, item) for item in wanted)
    if isinstance(wanted, list) and wanted and all(isinstance(item, list) for item in wanted):
        return value in wanted
    return bool(value == wanted and isinstance(value, bool) == isinstance(wanted, bool))


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise UsageError(f"{shown(text)}: longer than {_LONGEST} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{shown(text)}: no expression, such as `len(lambda_ace) == layers - 1`") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Call) and not _known(node)):
            raise UsageError(
                f"{shown(text)}: {shown(ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__)} is "
                f"not evaluated; allowed are keys, literals, arithmetic, comparisons, and, or, not, in, "
                f"{', '.join(_CALLS)}"
            )
    return tree


_ALLOWED = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.Call),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Compare, *_BINARY, *_COMPARE),
)


def _known(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords


def _value(node: ast.expr, config: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple():
            return [_value(item, config) for item in node.elts]
        case ast.Name():
            return _NAMES[node.id] if node.id in _NAMES and node.id not in config else _key(config, node.id)
        case ast.Attribute():
            return _key(_value(node.value, config), node.attr)
        case ast.Subscript():
            return _value(node.value, config)[_value(node.slice, config)]
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS[name](*(_value(item, config) for item in node.args))
        case ast.BoolOp(op=ast.And()):
            return all(_value(item, config) for item in node.values)
        case ast.BoolOp():
            return any(_value(item, config) for item in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, config)
        case ast.UnaryOp():
            return -_value(node.operand, config)
        case ast.BinOp():
            return _BINARY[type(node.op)](_value(node.left, config), _value(node.right, config))
        case ast.Compare():
            return _compared(node, config)
    raise TypeError(f"{ast.unparse(node)} is not evaluated")


def _compared(node: ast.Compare, config: Mapping[str, Any]) -> bool:
    left = _value(node.left, config)
    for sign, operand in zip(node.ops, node.comparators, strict=True):
        right = _value(operand, config)
        if not _COMPARE[type(sign)](left, right):
            return False
        left = right
    return True


def _key(config: Any, name: str) -> Any:
    if not isinstance(config, Mapping) or name not in config:
        raise KeyError(f"no key {name}")
    return config[name]
