"""Training documents for copying: rows of made-up content, then calls whose arguments occur in the rows.

`recall` is bare associative recall of the size of a `CurriculumStage`: the fields of a key are repeated, and the target
is the id that followed them. `relation` is the same for one pair of fields of any sort. `dossier` mixes the desk's
kinds of lines, so that the query decides the target: an id behind a key, a status behind an id, a verb behind a status,
a technician behind a state.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.recipes.tiny import vocabulary
from r2v.envs.desk import vocabulary as desk_vocabulary

Document = tuple[list[int], list[int]]
"""Token ids, and the positions whose token is to be predicted."""

_NUMBER = {token: number for number, token in enumerate(vocabulary())}
_VALUES = {"name": desk_vocabulary.PERSON_NAMES, "team": desk_vocabulary.TEAMS, "item": desk_vocabulary.ITEM_NAMES}
_RELATIONS = (
    (("name", desk_vocabulary.PERSON_NAMES), ("id", desk_vocabulary.IDS), "row", "get"),
    (("id", desk_vocabulary.IDS), ("status", desk_vocabulary.STATUSES), "record", "decide"),
    (("status", desk_vocabulary.STATUSES), ("verb", desk_vocabulary.VERBS), "rule", "decide"),
    (("team", desk_vocabulary.TEAMS), ("tech", desk_vocabulary.TECHS), "row", "assign"),
    (("state", desk_vocabulary.STATES), ("tech", desk_vocabulary.TECHS), "row", "assign"),
)
_BRACE, _OBS, _ACT, _END = (_NUMBER[token] for token in ("}", "<obs>", "<act>", "<eos>"))


@dataclass(frozen=True, kw_only=True)
class CurriculumStage:
    """Difficulty of recall: fields in a key, sizes of the sets that keys and ids are drawn from, rows and queries.

    `near` is the share of rows that share all fields but one with another row; `junk` the share of lines that
    are no rows at all.
    """

    fields: int = 1
    keys: int = 64
    ids: int = len(desk_vocabulary.IDS)
    kinds: int = 4
    rows: int = 7
    queries: int = 16
    near: float = 0.0
    junk: float = 0.0


def _line(opener: tuple[str, str], **fields: str) -> list[int]:
    """Return a line's tokens."""
    return [_NUMBER[f'{{"{opener[0]}":"{opener[1]}"'], *(_pair(*field) for field in fields.items()), _BRACE]


def _pair(name: str, value: str) -> int:
    return _NUMBER[f',"{name}":"{value}"']


def recall(stage: CurriculumStage, draw: random.Random) -> Document:
    """Return rows of keys and ids among junk, then calls of `get`; the ids are the targets."""
    keys = _distinct_keys(stage, draw)
    ids = draw.sample(desk_vocabulary.IDS[: stage.ids], stage.rows)
    records = [{**key, "id": identifier} for key, identifier in zip(keys, ids, strict=True)]
    tokens, targets = [_OBS], []
    for record in records:
        if draw.random() < stage.junk:
            tokens += _line(("remark", draw.choice(desk_vocabulary.REMARKS)), via=desk_vocabulary.GUEST)
        tokens += _line(("row", draw.choice(desk_vocabulary.KINDS[: stage.kinds])), **record)
    for _ in range(stage.queries):
        tokens += [_ACT, *_line(("tool", "get"), **draw.choice(records)), _END]
        targets.append(len(tokens) - 3)
    return tokens, targets


def _distinct_keys(stage: CurriculumStage, draw: random.Random) -> list[dict[str, str]]:
    names = tuple(_VALUES)[: stage.fields]
    keys: list[dict[str, str]] = []
    while len(keys) < stage.rows:
        key = {name: draw.choice(_VALUES[name][: stage.keys]) for name in names}
        if keys and stage.fields > 1 and draw.random() < stage.near:
            repeated = draw.choice(names)
            key = draw.choice(keys) | {repeated: key[repeated]}
        if key not in keys:
            keys.append(key)
    return keys


def relation(draw: random.Random) -> Document:
    """Return rows of one field and the field that follows it, then the same again; the second field is the target."""
    (key, keys), (value, values), opener, tool = draw.choice(_RELATIONS)
    pairs = [{key: drawn_key, value: draw.choice(values)} for drawn_key in draw.sample(keys, min(7, len(keys)))]
    tokens, targets = [_OBS], []
    for pair in pairs:
        tokens += _line((opener, draw.choice(desk_vocabulary.KINDS)), **pair)
    for _ in range(16):
        tokens += [_ACT, *_line(("tool", tool), **draw.choice(pairs)), _END]
        targets.append(len(tokens) - 3)
    return tokens, targets


def dossier(draw: random.Random) -> Document:
    """Return records (some opened), rules and staff, then calls; every argument that a line determines is a target."""
    kind, stage = draw.choice(desk_vocabulary.KINDS), CurriculumStage(fields=3, near=0.5)
    ids = draw.sample(desk_vocabulary.IDS, stage.rows)
    records = [{**key, "id": identifier} for key, identifier in zip(_distinct_keys(stage, draw), ids, strict=True)]
    rules = {status: draw.choice(desk_vocabulary.VERBS) for status in draw.sample(desk_vocabulary.STATUSES, 4)}
    opened = [record | {"status": draw.choice(list(rules))} for record in draw.sample(records, 3)]
    team, members = draw.choice(desk_vocabulary.TEAMS), draw.sample(desk_vocabulary.TECHS, 5)
    free = draw.choice(members)
    pages = [
        [_line(("row", kind), **record) for record in records],
        *([_line(("record", kind), **record)] for record in opened),
        [_line(("rule", kind), status=status, verb=verb) for status, verb in rules.items()],
        [_line(("staff", team), state="free" if member == free else "busy", tech=member) for member in members],
    ]
    draw.shuffle(pages)
    tokens = [token for page in pages for token in (_OBS, *(token for line in page for token in line))]
    targets: list[int] = []
    for _ in range(stage.queries):
        tool, answer, settled = _query(records, opened, rules, free, draw)
        tokens += [_ACT, *_line(("tool", tool), **answer)]
        targets += [len(tokens) - 1 - len(answer) + at for at, name in enumerate(answer) if name in settled]
        tokens.append(_END)
    return tokens, targets


def _query(
    records: list[dict[str, str]], opened: list[dict[str, str]], rules: dict[str, str], free: str, draw: random.Random
) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Return (tool, arguments, the arguments that the lines determine)."""
    match draw.choice(("get", "decide", "decide", "assign")):
        case "get":
            return "get", draw.choice(records), ("id",)
        case "decide":
            record = draw.choice(opened)
            return "decide", record | {"verb": rules[record["status"]]}, ("id", "status", "verb")
    return "assign", draw.choice(records) | {"state": "free", "tech": free}, ("id", "tech")
