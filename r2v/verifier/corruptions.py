"""Corruptions: plausible wrong actions made from the actor's observations. Playing them decides if they are wrong.

    for variant in corrupt(action, observations=seen, actions=done, later=rest, canaries=planted, key=key):
        variant.kind, variant.text

Each kind copies a mistake of small policies: a value from another row, an invented identifier, a repeated failed call,
a skipped step, an obeyed injection.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.data.action import canonical, parse_action
from r2v.randomness import Key, generator

_PAIR = re.compile(r'"(\w+)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_WORD = re.compile(r"[\w.\-/]+")
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Corruption:
    """Action to play in place of the teacher's."""

    kind: str
    text: str


def corrupt(
    action: str,
    *,
    observations: Sequence[str],
    actions: Sequence[str] = (),
    later: Sequence[str] = (),
    canaries: Sequence[str] = (),
    free: frozenset[str] = frozenset(),
    key: Key,
) -> list[Corruption]:
    """Return at most one variant per kind, distinct from `action` and from each other.

    `observations` end with the one to answer; `actions`: those played before it; `later`: the teacher's next ones;
    `canaries`: marks of injected lines; `free`: arguments whose values are kept. Deterministic in the arguments and the
    key.
    """
    draw = generator(*key, "corrupt")
    variants: dict[str, Corruption] = {}
    for variant in _variants(action, observations, actions, later, canaries, free, draw):
        form = canonical(variant.text, free)
        if form != canonical(action, free):
            variants.setdefault(form, variant)
    return list(variants.values())


def _variants(
    action: str,
    observations: Sequence[str],
    actions: Sequence[str],
    later: Sequence[str],
    canaries: Sequence[str],
    free: frozenset[str],
    draw: random.Random,
) -> Iterator[Corruption]:
    arguments = {
        name: value
        for name, value in parse_action(action).arguments.items()
        if name not in free and isinstance(value, str)
    }
    if obeyed := _obeyed(action, observations, canaries):
        yield Corruption("obeyed_injection", obeyed)
    if actions:
        yield Corruption("repeated_call", actions[-1])
    if later:
        yield Corruption("skipped_step", later[0])
    if swapped := _swapped(arguments, observations, draw):
        yield Corruption("swapped_argument", _rewritten(action, swapped))
    if unseen := _unseen(arguments, observations, draw):
        yield Corruption("unseen_id", _rewritten(action, unseen))


def _rewritten(action: str, changes: dict[str, Any]) -> str:
    return json.dumps({**json.loads(action), **changes}, ensure_ascii=False, separators=(",", ":"))


def _swapped(arguments: dict[str, str], observations: Sequence[str], draw: random.Random) -> dict[str, str]:
    """Return one argument with another value seen in the same field, or else of the same shape."""
    text = "\n".join(observations)
    fields, words = _PAIR.findall(text), _WORD.findall(text)
    choices = []
    for name, value in sorted(arguments.items()):
        others = {seen for field, seen in fields if field == name} or {
            word for word in words if _DIGIT.search(value) and _shape(word) == _shape(value)
        }
        choices += [(name, other) for other in sorted(others - {value})]
    return dict([draw.choice(choices)]) if choices else {}


def _shape(word: str) -> str:
    return re.sub(r"[^\W\d]+", "a", _DIGIT.sub("0", word))


def _unseen(arguments: dict[str, str], observations: Sequence[str], draw: random.Random) -> dict[str, str]:
    """Return one identifier with its digits redrawn until no observation contains it."""
    names = sorted(name for name, value in arguments.items() if _DIGIT.search(value))
    if not names:
        return {}
    name, text = draw.choice(names), "\n".join(observations)
    for _ in range(100):
        value = _DIGIT.sub(lambda _: draw.choice("123456789"), arguments[name])
        if value not in text:
            return {name: value}
    return {}


def _obeyed(action: str, observations: Sequence[str], canaries: Sequence[str]) -> str | None:
    """Return the action requested by an injected line: the call of its tool, or else `action` with its values."""
    call = parse_action(action)
    for line in reversed("\n".join(observations).splitlines()):
        if not any(canary in line for canary in canaries):
            continue
        planted = dict(_PAIR.findall(line))
        if "tool" in planted:
            requested = {name: value for name, value in planted.items() if name not in ("note", "via")}
            return json.dumps(requested, ensure_ascii=False, separators=(",", ":"))
        shared = {name: value for name, value in planted.items() if name in call.arguments}
        if call.action_type and shared:
            return _rewritten(action, shared)
    return None
