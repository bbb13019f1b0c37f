"""Mutants of a module, by Cosmic Ray's operators and two more: a dropped statement, and `in` for `not in`.

Changes that do not test the tests are left out: annotations, decorators, and variants of one operator beyond its
neighbours (`<` becomes `<=` and `>=`, not each of the seven others). A mutant's id hashes the text of its line and not
its number, so that the same mutants are drawn again after an edit elsewhere in the module. Cosmic Ray (the extra
`mutate`) is imported lazily, so that this module can be imported without it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

SEED = "r2v-mutants-1"
"""Of every draw."""
USED = re.compile(
    r"core/(AddNot|NumberReplacer|ExceptionReplacer|ZeroIterationForLoop|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue|ReplaceContinueWithBreak"
    r"|ReplaceUnaryOperator_(Delete_Not|Delete_USub|USub_UAdd)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt"
    r"|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul|Pow_Mul|BitAnd_BitOr|BitOr_BitAnd))"
)


class Operator(Protocol):
    """Cosmic Ray's operator interface. A node is one of parso's syntax tree, a position (line, column)."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield start and end of each position of this node that the operator may change."""
        ...

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node after the change of its `index`-th place."""
        ...


class DropStatement:
    """`pass` in place of a call with an unused value, an augmented assignment, a deletion or a raise."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the position of the node if it is such a statement."""
        if node.type == "simple_stmt" and self._droppable(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    @staticmethod
    def _droppable(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            return getattr(statement.children[1], "type", "") in ("augassign", "operator") and (
                statement.children[1].get_code().strip() != "="
            )
        return statement.type in ("atom_expr", "await", "del_stmt", "raise_stmt") or (
            statement.type == "keyword" and statement.value == "raise"
        )

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement with `pass` in its place."""
        import parso

        dropped = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", dropped.start_pos, dropped.get_first_leaf().prefix)
        return node


class Membership:
    """`in` becomes `not in`, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield a position for each such operator of a comparison."""
        if node.type == "comparison":
            for operator in self._operators(node):
                yield operator.start_pos, operator.end_pos

    @staticmethod
    def _operators(node: Any) -> list[Any]:
        return [part for part in node.children[1::2] if part.get_code().split() in (["in"], ["not", "in"])]

    def mutate(self, node: Any, index: int) -> Any:
        """Return the comparison with the other operator."""
        import parso

        operator = self._operators(node)[index]
        other = " in" if operator.get_code().split() == ["not", "in"] else " not in"
        node.children[node.children.index(operator)] = parso.python.tree.Operator(other, operator.start_pos)
        return node


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed version of a module."""

    id: str
    module: str
    """Below r2v/, without its ending."""
    line: int
    before: str
    """The lines that are changed, stripped."""
    after: str
    code: str
    """The whole module's text."""

    @property
    def diff(self) -> str:
        """The mutation as a unified diff."""
        removed = "".join(f"    - {text}\n" for text in self.before.splitlines())
        return f"r2v/{self.module}.py:{self.line}\n{removed}" + "".join(f"    + {t}\n" for t in self.after.splitlines())


def drawn_mutants(root: Path, modules: list[str], count: int) -> dict[str, list[Mutant]]:
    """Return a fixed sample of `count` over the modules of a checkout, by their size, at least 6 of each."""
    places = {module: _places(root, module) for module in modules}
    total = sum(map(len, places.values()))
    least = min(6, count // len(modules))
    shares = {module: least + (count - least * len(modules)) * len(all_) / total for module, all_ in places.items()}
    counts = {module: int(share) for module, share in shares.items()}
    for module in sorted(modules, key=lambda module: counts[module] - shares[module])[: count - sum(counts.values())]:
        counts[module] += 1
    return {module: list(islice(_mutants(root, module, places[module]), counts[module])) for module in modules}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A position at which an operator may change a module: its `occurrence`-th."""

    id: str
    operator: Operator
    occurrence: int
    line: int


def _places(root: Path, module: str) -> list[_Place]:
    """Return every place of a module below r2v/, in the order in which mutants are drawn."""
    import parso
    from cosmic_ray.ast import ast_nodes

    text = (root / "r2v" / f"{module}.py").read_text()
    lines, nodes, spans, seen = text.splitlines(), list(ast_nodes(parso.parse(text))), _left_out(text), Counter[str]()
    places = []
    for name, operator in _operators():
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(positions):
            is_separator = lines[start[0] - 1][start[1] :].startswith("*,")  # of keyword-only parameters
            if is_separator or any(begin <= start < end for begin, end in spans):
                continue
            stripped = lines[start[0] - 1].lstrip()
            what = f"{SEED}|{module}|{name}|{stripped}|{start[1] - len(lines[start[0] - 1]) + len(stripped)}"
            seen[what] += 1
            digest = hashlib.sha256(f"{what}|{seen[what]}".encode()).hexdigest()[:16]
            places.append(_Place(id=digest, operator=operator, occurrence=occurrence, line=start[0]))
    return sorted(places, key=lambda position: position.id)


def _mutants(root: Path, module: str, places: list[_Place]) -> Iterator[Mutant]:
    """Yield the mutants of these places, without invalid Python and without those of equal meaning."""
    text = (root / "r2v" / f"{module}.py").read_text()
    meaning = ast.dump(ast.parse(text))
    for position in places:
        code = _mutated(text, position.operator, position.occurrence)
        if _meaning(code) not in (None, meaning):
            before, after = _changed_lines(text, code)
            yield Mutant(id=position.id, module=module, line=position.line, before=before, after=after, code=code)


def _operators() -> list[tuple[str, Operator]]:
    from cosmic_ray.plugins import get_operator, operator_names

    used = [(name, get_operator(name)()) for name in operator_names() if USED.fullmatch(name)]
    return [*used, ("DropStatement", DropStatement()), ("Membership", Membership())]


def _left_out(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans, as (line, column) pairs, of annotations, decorators and blocks for type checkers alone."""
    spans: list[Any] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            spans += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            spans += node.decorator_list
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            spans.append(node.annotation)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            spans.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
            spans.append(node.args[0])
    return [((s.lineno, s.col_offset), (s.end_lineno, s.end_col_offset)) for s in spans if s is not None]


def _mutated(text: str, operator: Operator, occurrence: int) -> str:
    """Return the mutated text; the text itself if the mutation fails, as Cosmic Ray's does for `except a.b`."""
    from cosmic_ray.mutating import mutate_code

    try:
        return mutate_code(text, operator, occurrence) or text
    except AttributeError:
        return text


def _meaning(code: str) -> str | None:
    """Return the syntax tree as text; None for invalid code."""
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _changed_lines(old: str, new: str) -> tuple[str, str]:
    """Return the lines between the texts' common beginning and end, before and after, stripped."""
    before, after = old.splitlines(), new.splitlines()
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return "\n".join(map(str.strip, before)), "\n".join(" ".join(line.split()) for line in after)
