"""Conditions on a point's configuration: checks that must hold, and filters of points.

    holds("len(lambda_ace) == layers - 1", {"layers": 4, "lambda_ace": [0.1, 0.1, 0.1]})     # True
    holds("model != 'greedy' or len(lambda_ace) == layers - 1", config)

A check is an expression over the configuration's keys: literals, arithmetic, comparisons, `and`, `or`, `not`, `in`,
`len`, `min`, `max`, `sum`; dots and brackets reach into sections and lists. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from r2v.constraints import shown
from r2v.errors import UsageError

_LONGEST = 500
_CALLS: dict[str, Callable[..., Any]] = {"len": len, "min": min, "max": max, "sum": sum, "abs": abs}
_NAMES = {"true": True, "false": False, "null": None}
_MISSING = object()
_ALLOWED = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.Call),
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div),
    *(ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)
"""Syntax allowed in a check, which Python evaluates: no methods, and no functions except those of _CALLS."""


def require_check(text: str) -> None:
    """Raise UsageError if a check is not an allowed expression."""
    _parsed(text)


def holds(text: str, config: Mapping[str, Any]) -> bool:
    """True if a check holds in a configuration. Raise UsageError if it cannot be evaluated: a key is missing, or types
    do not match."""
    code = compile(ast.fix_missing_locations(ast.Expression(_Lookups().visit(_parsed(text)))), "check", "eval")
    try:
        return bool(eval(code, {"__builtins__": {}, **_CALLS}, {"config": {**_NAMES, **config}}))
    except KeyError as error:
        raise UsageError(f"{text}: cannot be told: no key {error.args[0]}") from None
    except (TypeError, ZeroDivisionError, IndexError, ValueError, OverflowError) as error:
        raise UsageError(f"{text}: cannot be told: {error}") from None


def matches(condition: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """True if a configuration has all values of `condition`: key -> value, or a list of allowed values."""
    return all(_is(at(config, key), allowed) for key, allowed in condition.items())


def at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, or a sentinel, equal to no value, if it is missing."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def has(config: Mapping[str, Any], key: str) -> bool:
    """True if a configuration has a dotted key."""
    return at(config, key) is not _MISSING


def _is(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, list) and not isinstance(value, list):
        return any(_is(value, item) for item in allowed)
    if isinstance(allowed, list) and allowed and all(isinstance(item, list) for item in allowed):
        return value in allowed
    return bool(value == allowed and isinstance(value, bool) == isinstance(allowed, bool))


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise UsageError(f"{shown(text)}: longer than {_LONGEST} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{shown(text)}: no expression, such as `len(lambda_ace) == layers - 1`") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Call) and not _callable(node)):
            raise UsageError(
                f"{shown(text)}: {shown(ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__)} is "
                f"not evaluated; allowed are keys, literals, arithmetic, comparisons, and, or, not, in, "
                f"{', '.join(_CALLS)}"
            )
    return tree


def _callable(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords


class _Lookups(ast.NodeTransformer):
    """Transformer of names and dots into lookups in the configuration: `a.b` becomes `config["a"]["b"]`."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _item(ast.Name("config", ast.Load()), node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _item(self.visit(node.value), node.attr)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(argument) for argument in node.args]
        return node


def _item(section: ast.expr, key: str) -> ast.expr:
    return ast.Subscript(section, ast.Constant(key), ast.Load())
