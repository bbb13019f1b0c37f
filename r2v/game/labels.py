"""Human labels of one player's messages in a conversation: revealed or not, and the claims made.

A keyed sample of a job's complete conversations is shown with both players' messages and labelled one side at a time
(`r2v game label`). `r2v game check` measures the detectors against such a file: recall and precision of claims,
sensitivity and specificity of certain reveals. A judge takes the same files.

A row contains its messages, so a file is complete without its job:

    {"id": "conversation_3", "agent": "1", "secret": "...", "messages": ["..."], "revealed": false, "claims": ["..."]}

`held_out.jsonl` is such a file of 115 sentences, written by hand before the claim detector and not used in its
development.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.evaluation.measures.statistics import wilson
from r2v.game.detection.claims import claimed_secrets
from r2v.game.detection.detectors import reveals
from r2v.game.detection.normalize import normalize
from r2v.game.play.records import Interaction
from r2v.randomness import generator

CLAIM_SENTENCES = Path(__file__).parent / "detection" / "held_out.jsonl"


@dataclass(frozen=True, kw_only=True)
class LabelledSide:
    """One player's messages in one conversation, labelled by a person."""

    id: str
    agent: str
    secret: str
    messages: tuple[str, ...]
    revealed: bool
    """True if the messages give the secret away."""
    claims: tuple[str, ...]
    """Claimed secrets, true or not, in the words used."""

    def to_line(self) -> str:
        """Return the row of a label file."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_labelled_sides(path: Path) -> list[LabelledSide]:
    """Return a label file's rows. Raises InputError with the number of a wrong line."""
    rows = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(_side(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise InputError(f"{path}:{number}: not a row of `r2v game label`: {error!r}") from error
    return rows


def _side(row: dict[str, Any]) -> LabelledSide:
    texts = [row["id"], row["agent"], row["secret"], *row["messages"], *row["claims"]]
    if not all(isinstance(text, str) for text in texts) or not isinstance(row["revealed"], bool):
        raise TypeError("id, agent, secret, messages and claims are texts, revealed is true or false")
    return LabelledSide(
        id=row["id"],
        agent=row["agent"],
        secret=row["secret"],
        messages=tuple(row["messages"]),
        revealed=row["revealed"],
        claims=tuple(row["claims"]),
    )


def draw_sides(
    interactions: Iterable[Interaction], count: int, seed: int, done: Iterable[LabelledSide] = ()
) -> list[tuple[Interaction, int]]:
    """Return a keyed sample of (complete conversation, player 0 or 1) in labelling order, without the sides in
    `done`."""
    sides = [(interaction, player) for interaction in interactions if not interaction.incomplete for player in (0, 1)]
    sample = generator("label", seed).sample(sides, min(count, len(sides)))
    labelled = {(side.id, side.agent) for side in done}
    return [
        (interaction, player)
        for interaction, player in sample
        if (interaction.id, interaction.players[player].agent) not in labelled
    ]


@dataclass(frozen=True, kw_only=True)
class Share:
    """A count out of a total, shown with Wilson's 95 % interval."""

    count: int
    total: int

    def __str__(self) -> str:
        if not self.total:
            return "none to measure it on"
        low, high = wilson(self.count, self.total)
        return (
            f"{self.count} of {self.total} ({100 * self.count / self.total:.1f} % [{100 * low:.0f}, {100 * high:.0f}])"
        )


@dataclass(frozen=True, kw_only=True)
class DetectorCheck:
    """Accuracy of the detectors on labelled sides."""

    claims_found: Share
    """Recall: labelled claims that are found, compared by letters and digits."""
    claims_right: Share
    """Precision: found claims that are labelled."""
    reveals_found: Share
    """Sensitivity of the certain detectors, over revealed secrets."""
    kept_right: Share
    """Specificity of the certain detectors, over kept secrets."""
    mistakes: tuple[str, ...]


def check_detectors(sides: Sequence[LabelledSide]) -> DetectorCheck:
    """Measure the detectors on labelled sides. Claims are compared by their letters and digits."""
    num_claims = num_labelled = hits = 0
    true_reveals = revealed = true_keeps = num_kept = 0
    mistakes = []
    for side in sides:
        labelled = {normalize(claim).letters for claim in side.claims}
        got = {normalize(claim).letters for message in side.messages for claim in claimed_secrets(message)}
        is_revealed = any(reveals(side.secret, message) for message in side.messages)
        num_claims, num_labelled, hits = num_claims + len(got), num_labelled + len(labelled), hits + len(got & labelled)
        revealed, true_reveals = revealed + side.revealed, true_reveals + (side.revealed and is_revealed)
        num_kept, true_keeps = num_kept + (not side.revealed), true_keeps + (not side.revealed and not is_revealed)
        where = f"{side.id}, agent {side.agent}"
        mistakes += [f"{where}: claim missed: {claim}" for claim in sorted(labelled - got)]
        mistakes += [f"{where}: no claim: {claim}" for claim in sorted(got - labelled)]
        if is_revealed != side.revealed:
            mistakes.append(
                f"{where}: {'reveal missed' if side.revealed else 'no reveal'}: {' / '.join(side.messages)}"
            )
    return DetectorCheck(
        claims_found=Share(count=hits, total=num_labelled),
        claims_right=Share(count=hits, total=num_claims),
        reveals_found=Share(count=true_reveals, total=revealed),
        kept_right=Share(count=true_keeps, total=num_kept),
        mistakes=tuple(mistakes),
    )
