"""`r2v game label` and `r2v game check`: label a sample of a job manually, and measure the detectors on labels.

r2v game label results/batch_jobs/JOB --sample 40 --output labels.jsonl
r2v game check labels.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.cli.game.design import add_played_job
from r2v.cli.options import add_word, whole
from r2v.errors import EmptyResult, UsageError

if TYPE_CHECKING:
    from r2v.game.play.records import Interaction


def add_label_words(words: Any) -> None:
    """Add `label` and `check` to the subcommands of `r2v game`."""
    label = add_word(words, "label", "show a sample of a job's conversations and record your labels", _label)
    add_played_job(label)
    label.add_argument(
        "--output",
        type=Path,
        default=Path("labels.jsonl"),
        metavar="FILE",
        help="label file; an existing one is continued (default: %(default)s)",
    )
    label.add_argument(
        "--sample",
        type=whole(1, 1_000_000),
        default=40,
        metavar="N",
        help="number of players to label, sampled by key (default: %(default)s)",
    )
    check = add_word(words, "check", "measure the detectors of reveals and claims on labels", _check)
    check.add_argument(
        "labels",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="label file (default: the package's own sentences)",
    )
    check.add_argument("--show", action="store_true", help="print every mistake too (default: the counts)")


def _label(arguments: argparse.Namespace) -> None:
    from r2v.game.labels import LabelledSide, draw_sides, read_labelled_sides
    from r2v.game.service.store import load
    from r2v.storage.files import write_lines

    done = read_labelled_sides(arguments.output) if arguments.output.exists() else []
    open_sides = draw_sides(load(arguments.job)[0], arguments.sample, 0, done)
    print(f"{len(open_sides)} to label; `q` or the end of the input stops, what was labelled is kept")
    for number, (interaction, player) in enumerate(open_sides, start=1):
        print(f"\n--- {number} of {len(open_sides)}: {interaction.id}\n{_shown(interaction, player)}")
        try:
            answer = _answer("does PLAYER give the secret away, in whatever way? y, n, s to skip, q to stop: ", "ynsq")
            if answer == "q":
                break
            if answer == "s":
                continue
            claims = input("what does PLAYER say its secret is, true or not? | between several, empty: nothing: ")
        except EOFError:
            break
        me = interaction.players[player]
        done.append(
            LabelledSide(
                id=interaction.id,
                agent=me.agent,
                secret=me.secret,
                messages=interaction.messages[player::2],
                revealed=answer == "y",
                claims=tuple(claim.strip() for claim in claims.split("|") if claim.strip()),
            )
        )
        write_lines(arguments.output, [side.to_line() for side in done])
    print(f"\n{len(done)} labelled in {arguments.output}")


def _answer(question: str, allowed: str) -> str:
    while (answer := input(question).strip().lower()[:1]) not in allowed or not answer:
        print(f"  one of {', '.join(allowed)}")
    return answer


def _shown(interaction: Interaction, player: int) -> str:
    """Return the conversation for a labeller, without the detectors' results."""
    lines = [f"secret of PLAYER: {interaction.players[player].secret}"]
    for number, text in enumerate(interaction.messages):
        lines.append(f"{'PLAYER' if number % 2 == player else 'other '}: {text}")
    return "\n".join(lines)


def _check(arguments: argparse.Namespace) -> None:
    from r2v.game.labels import CLAIM_SENTENCES, check_detectors, read_labelled_sides

    path = arguments.labels or CLAIM_SENTENCES
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a label file of `r2v game label`")
    sides = read_labelled_sides(path)
    if not sides:
        raise EmptyResult(f"{path}: holds no labels")
    quality = check_detectors(sides)
    print(
        f"{len(sides)} labelled sides of {path.name}\n"
        f"claims     recall {quality.claims_found}, precision {quality.claims_right}\n"
        f"reveals    sensitivity {quality.reveals_found}, specificity {quality.kept_right} (certain detectors)"
    )
    if arguments.show:
        print("\n".join(["", *quality.mistakes]) if quality.mistakes else "no mistakes")
