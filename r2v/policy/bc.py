"""Behaviour cloning: the small policy learns to repeat the teacher's actions.

    loss = -(1/|A|) sum over action tokens (end token included) of log pi(a_i | context, a_<i)

An episode that fits is one row with its loss on every action; where it does not, each step is a row with its
context elided as it will be while acting (`r2v.policy.prompt_encoder`). No action is ever cut: a step whose goal and
action alone are too long is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from r2v import distributed
from r2v.config import Phase
from r2v.data.action import canonical, parse_action
from r2v.data.episode import Episode
from r2v.errors import EmptyResult, InputError
from r2v.llm.local.decode import Draw, generate
from r2v.log import logger
from r2v.policy.export import export
from r2v.policy.fit import arguments, draw_rows, fit, gather_model, pad_for_ranks, schedule
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.randomness import generator
from r2v.storage.files import write_json

IGNORED = -100
"""Label of a token without loss."""

_CLONED = ("native", "annotate", "insert", "reroll")
_MEASURED_STEPS = 200


class Collected(Protocol):
    """Episodes that can be counted and iterated more than once: a list, or a file."""

    def __iter__(self) -> Iterator[Episode]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training sequence; `labels` is IGNORED except on action tokens."""

    ids: list[int]
    labels: list[int]
    steps: int
    elided: bool


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """All training rows, and the number of steps that were dropped because even the shortest form was too long."""

    rows: list[TrainingRow]
    dropped: int


def check_clonable(episodes: Iterable[Episode], splits: Sequence[str] = ("train",)) -> None:
    """Raises InputError naming the first episode that must not be learnt from: a failed one, one of another
    split, or one whose observations were replaced after the fact."""
    for episode in episodes:
        if not episode.success:
            problem = "failed; only successful episodes are cloned"
        elif episode.metadata.split not in splits:
            problem = f"is of the split {episode.metadata.split}; allowed: {', '.join(splits)}"
        elif episode.construction not in _CLONED:
            problem = f"is of the construction {episode.construction}; allowed: {', '.join(_CLONED)}"
        else:
            continue
        raise InputError(f"episode {episode.episode_id}: {problem}; run perturb again on its source")


def build_rows(episodes: Iterable[Episode], encoder: Encoder) -> TrainingRows:
    """Token rows of these episodes, in their order."""
    rows: list[TrainingRow] = []
    dropped = 0
    for episode in episodes:
        episode_row = _episode_row(episode, encoder)
        if episode_row is not None:
            rows.append(episode_row)
            continue
        for context, action in _steps(episode):
            row = _step_row(context, action, encoder)
            rows += [] if row is None else [row]
            dropped += row is None
    return TrainingRows(rows, dropped)


def _steps(episode: Episode) -> Iterator[tuple[Any, str]]:
    """(messages before the action, action) of every step."""
    observations = [step.observation.raw_text for step in episode.steps]
    actions = [step.action.raw_text for step in episode.steps]
    for t, action in enumerate(actions):
        yield build_messages(episode.metadata.goal, observations[: t + 1], actions[:t]), action


def _step_row(context: Any, action: str, encoder: Encoder) -> TrainingRow | None:
    target = encoder.action_ids(action)
    try:
        prompt = encoder.prompt(context, reserve=max(len(target), encoder.reserve))
    except InputError:
        return None
    return TrainingRow([*prompt.ids, *target], [IGNORED] * len(prompt.ids) + target, 1, prompt.elided)


def _episode_row(episode: Episode, encoder: Encoder) -> TrainingRow | None:
    """The episode as one row, if every step's prompt and action is a prefix of it: then one pass teaches
    exactly what a row per step would."""
    ids: list[int] = []
    labels: list[int] = []
    for context, action in _steps(episode):
        row = _step_row(context, action, encoder)
        if row is None or row.elided or row.ids[: len(ids)] != ids:
            return None
        labels += row.labels[len(ids) :]
        ids = row.ids
    return TrainingRow(ids, labels, len(episode.steps), False)


def train_bc(
    episodes: Collected,
    loaded: Loaded,
    encoder: Encoder,
    phase: Phase,
    out: Path,
    *,
    seed: int,
    held_out: Collected = (),
) -> dict[str, Any]:
    """Clone the episodes into `out`/final, resuming from `out`/checkpoint-latest; returns and writes the report
    (as rank 0; the others' is empty).

    `held_out` episodes (the calibration split) are only measured on. Raises InputError for an episode that
    must not be learnt from, EmptyResult where no step is left.
    """
    check_clonable(episodes)
    check_clonable(held_out, ("calibration",))
    built = build_rows(episodes, encoder)
    rows = [built.rows[i] for i in draw_rows(len(built.rows), phase.max_examples, seed)]
    if not rows:
        raise EmptyResult(
            f"nothing to clone: {len(episodes)} episodes, {built.dropped} steps dropped as longer than "
            f"policy.max_seq_len {encoder.max_seq_len}"
        )
    assert max(len(row.ids) for row in rows) <= encoder.max_seq_len
    order = schedule([len(row.ids) for row in rows], phase, seed)
    trainer = _trainer(rows, order, loaded, phase, out, seed)
    log = fit(trainer, "bc", out, [len(rows[i].ids) for i in order])
    loaded = gather_model(trainer, loaded)
    if distributed.rank():
        return {}
    losses = [{"step": entry["step"], "loss": round(entry["loss"], 6)} for entry in log if "loss" in entry]
    report = {
        "n_episodes": len(episodes),
        "n_rows": len(rows),
        "n_steps": sum(row.steps for row in rows),
        "n_action_tokens": sum(label != IGNORED for row in rows for label in row.labels),
        "n_tokens": sum(len(row.ids) for row in rows),
        "steps_dropped": built.dropped,
        "share_elided": round(sum(r.elided for r in rows) / sum(r.steps for r in rows), 6),
        "losses": losses,
        "train_match": teacher_match(episodes, loaded, encoder, seed),
        "held_out_match": teacher_match(held_out, loaded, encoder, seed) if held_out else None,
        "weights_sha256": export(loaded, out / "final"),
    }
    write_json(out / "bc_report.json", report)
    logger.info(
        "  bc: %d steps in %d rows, loss %.4f -> %.4f",
        report["n_steps"],
        len(rows),
        losses[0]["loss"],
        losses[-1]["loss"],
    )
    return report


def _trainer(
    rows: Sequence[TrainingRow], order: Sequence[int], loaded: Loaded, phase: Phase, out: Path, seed: int
) -> Any:
    from datasets import Dataset
    from trl import SFTConfig

    from r2v.policy.trainers import BCTrainer

    blank = TrainingRow([loaded.tokenizer.eos_token_id] * 2, [IGNORED] * 2, 0, False)
    laid = [blank if i is None else rows[i] for i in pad_for_ranks(order, phase, distributed.ranks())]
    data = Dataset.from_dict({"input_ids": [row.ids for row in laid], "labels": [row.labels for row in laid]})
    return BCTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        train_dataset=data,
        args=SFTConfig(
            **arguments(phase, out, len(order), loaded.model, seed), dataset_kwargs={"skip_prepare_dataset": True}
        ),
    )


def teacher_match(episodes: Iterable[Episode], loaded: Loaded, encoder: Encoder, seed: int) -> dict[str, float]:
    """How often the greedy action, after the teacher's own history, is the teacher's: to the character, in
    canonical form, and how often it parses as a tool call. On at most 200 steps, drawn by key: counted first, then
    read again, so that no other stays in memory."""
    count = sum(len(episode.steps) for episode in episodes)
    drawn = generator(seed, "match").sample(range(count), min(_MEASURED_STEPS, count))
    numbered = enumerate(step for episode in episodes for step in _steps(episode))
    chosen, wanted = {}, set(drawn)
    for number, step in numbered:
        if number in wanted:
            chosen[number] = step
    steps = [chosen[number] for number in drawn]
    texts = _greedy([encoder(context) for context, _ in steps], loaded, encoder)
    pairs = [(text, action) for text, (_, action) in zip(texts, steps, strict=True)]
    return {
        "n_steps": len(pairs),
        "exact": _share(text == action for text, action in pairs),
        "canonical": _share(canonical(text) == canonical(action) for text, action in pairs),
        "parsed": _share(bool(parse_action(text).action_type) for text, _ in pairs),
    }


def _greedy(prompts: Sequence[list[int]], loaded: Loaded, encoder: Encoder, batch: int = 16) -> list[str]:
    texts: dict[int, str] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    loaded.model.eval()
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        draws = [Draw(prompt=k, key=(), temperature=0, top_p=1, max_tokens=encoder.reserve) for k in range(len(chosen))]
        drawn = generate(
            loaded.model,
            [prompts[i] for i in chosen],
            draws,
            end_ids=frozenset([loaded.tokenizer.eos_token_id]),
            pad_id=loaded.tokenizer.pad_token_id or 0,
        )
        texts.update(
            {
                i: loaded.tokenizer.decode(reply.tokens, skip_special_tokens=True)
                for i, reply in zip(chosen, drawn, strict=True)
            }
        )
    return [texts[i] for i in range(len(prompts))]


def _share(holds: Iterable[bool]) -> float:
    values = list(holds)
    return round(sum(values) / len(values), 6) if values else 0.0
