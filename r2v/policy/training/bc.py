"""Behaviour cloning: the small policy learns to repeat the teacher's actions.

    loss = -(1/|A|) sum over action tokens (end token included) of log pi(a_i | context, a_<i)

Where the chat template begins every reply with the same text (`ChatTemplate.opening`, such as an empty thought), its
tokens count as action tokens.

`r2v.policy.training.rows` makes the training sequences; `r2v.policy.training.fit` runs TRL's trainer on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
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
from r2v.policy.load import Loaded
from r2v.policy.prefix_tree import IGNORED, why_no_trees
from r2v.policy.prompt_encoder import Encoder
from r2v.policy.sharded_loading import agree_on_dtypes, from_rank0
from r2v.policy.training.fit import arguments, draw_rows, fit, pad_for_ranks, schedule
from r2v.policy.training.rows import TrainingRow, build_rows, steps_of
from r2v.policy.training.sharded_training import gather_model
from r2v.randomness import generator
from r2v.storage.files import write_json

_CLONED = ("native", "annotate", "insert", "reroll")
"""Constructions of episodes whose actions answer their recorded observations."""
_MEASURED_STEPS = 200
_UNKNOWN_SHARE = 0.25


class Collected(Protocol):
    """Episodes that can be counted and iterated more than once: a list, or a file."""

    def __iter__(self) -> Iterator[Episode]: ...
    def __len__(self) -> int: ...


def check_clonable(episodes: Iterable[Episode], splits: Sequence[str] = ("train",), *, replaced: bool = False) -> None:
    """Raise InputError naming the first episode that must not be learnt from: a failed one (or an imported one whose
    log says so), one of another split, or, unless `replaced`, one whose observations were replaced after the fact."""
    allowed = (*_CLONED, "replace") if replaced else _CLONED
    for episode in episodes:
        if not episode.demonstrates:
            problem = "failed; only successful episodes are cloned"
        elif episode.metadata.split not in splits:
            problem = f"is of the split {episode.metadata.split}; allowed: {', '.join(splits)}"
        elif episode.construction not in allowed:
            problem = f"is of the construction {episode.construction}; allowed: {', '.join(allowed)}"
        else:
            continue
        raise InputError(f"episode {episode.episode_id}: {problem}; run perturb again on its source")


def _takes_trees(loaded: Loaded, encoder: Encoder) -> bool:
    """True if rank 0's model can be trained on prefix trees; the weights of other ranks may have no values yet."""
    reason = from_rank0(None if distributed.rank() else why_no_trees(loaded.model, encoder.max_seq_len))
    if reason is not None:
        logger.info("  prefix trees are off, steps with rewritten prompts are single rows: reason=%s", reason)
    return reason is None


def train_bc(
    episodes: Collected,
    loaded: Loaded,
    encoder: Encoder,
    phase: Phase,
    out: Path,
    *,
    seed: int,
    held_out: Collected = (),
    replaced: bool = False,
) -> dict[str, Any]:
    """Clone the episodes into `out`/final, resuming from `out`/checkpoint-latest; write and return the report
    (empty on ranks other than 0).

    `held_out` episodes (the calibration split, or tasks left to a router) are only measured on; `replaced` as in
    `check_clonable`. Raises InputError for an episode that must not be learnt from, EmptyResult where no step is
    left.
    """
    check_clonable(episodes, replaced=replaced)
    check_clonable(held_out, ("calibration", "train"), replaced=replaced)
    takes_trees = cache(lambda: _takes_trees(loaded, encoder))  # tested once, and only if an episode could be a tree
    built = build_rows(episodes, encoder, takes_trees)
    rows = [built.rows[i] for i in draw_rows(len(built.rows), phase.max_examples, seed)]
    if not rows:
        raise EmptyResult(
            f"nothing to clone: {len(episodes)} episodes, {built.dropped} steps dropped as longer than "
            f"policy.max_seq_len {encoder.max_seq_len}"
        )
    assert max(len(row.ids) for row in rows) <= encoder.max_seq_len
    _warn_of_unknown_words(rows, loaded)
    order = schedule([len(row.ids) for row in rows], phase, seed)
    trainer = make_bc_trainer(rows, order, loaded, phase, out, seed)
    log = fit(trainer, "bc", out, [len(rows[i].ids) for i in order])
    loaded = gather_model(trainer, loaded)
    if distributed.rank():
        return {}
    losses = [{"step": entry["step"], "loss": round(entry["loss"], 6)} for entry in log if "loss" in entry]
    match = teacher_match(episodes, loaded, encoder, seed)
    report = {
        "n_episodes": len(episodes),
        "n_rows": len(rows),
        "n_steps": sum(row.steps for row in rows),
        "n_action_tokens": sum(label != IGNORED for row in rows for label in row.labels),
        "n_tokens": sum(len(row.ids) for row in rows),
        **_spared(rows),
        "steps_dropped": built.dropped,
        "share_elided": round(sum(r.elided for r in rows) / sum(r.steps for r in rows), 6),
        "losses": losses,
        "train_match": match,
        "held_out_match": teacher_match(held_out, loaded, encoder, seed) if held_out else None,
        "weights_sha256": export(loaded, out / "final"),
    }
    write_json(out / "bc_report.json", report)
    logger.info(
        "  bc trained: steps=%d rows=%d first_loss=%.4f last_loss=%.4f teacher_match=%.1f%% matched_on_steps=%d",
        *(report["n_steps"], len(rows), losses[0]["loss"], losses[-1]["loss"]),
        *(100 * match["canonical"], match["n_steps"]),
    )
    return report


def _warn_of_unknown_words(rows: Sequence[TrainingRow], loaded: Loaded) -> None:
    """Warn where the vocabulary lacks much of the text, as the bundled student's does outside the desk."""
    unknown = loaded.tokenizer.unk_token_id
    if unknown in (None, loaded.tokenizer.eos_token_id):
        return
    share = sum(row.ids.count(unknown) for row in rows) / sum(len(row.ids) for row in rows)
    if share > _UNKNOWN_SHARE:
        logger.warning(
            "  vocabulary lacks words of the trajectories: model=%s unknown_tokens=%.0f%% remedy=name another model by "
            "policy.model_name=FOLDER or NAME, or one behind an API by policy.provider",
            *(loaded.name, 100 * share),
        )


def _spared(rows: Sequence[TrainingRow]) -> dict[str, int]:
    """Return, for the report, the tokens of the same steps as single rows; empty where none are laid into trees."""
    if not any(row.depths for row in rows):
        return {}
    spared = {"n_tokens_step_by_step": sum(row.alone or len(row.ids) for row in rows)}
    logger.info("  prefix trees: tokens=%d tokens_step_by_step=%d", sum(len(r.ids) for r in rows), *spared.values())
    return spared


def make_bc_trainer(
    rows: Sequence[TrainingRow], order: Sequence[int], loaded: Loaded, phase: Phase, out: Path, seed: int
) -> Any:
    """Return TRL's trainer of rows in the order given."""
    from datasets import Dataset
    from trl import SFTConfig

    from r2v.policy.training.trainers import BCTrainer, collate_trees

    eos, pad = loaded.tokenizer.eos_token_id, loaded.tokenizer.pad_token_id
    blank = TrainingRow([eos] * 2, [IGNORED] * 2, 0, 0)
    laid = [blank if i is None else rows[i] for i in pad_for_ranks(order, phase, distributed.ranks())]
    columns = {"input_ids": [row.ids for row in laid], "labels": [row.labels for row in laid]}
    in_trees = any(row.depths for row in laid)
    if in_trees:
        columns["depths"] = [row.depths or list(range(len(row.ids))) for row in laid]
        columns["ends"] = [row.ends or [len(row.ids)] * len(row.ids) for row in laid]
    args = SFTConfig(
        **arguments(phase, out, len(order), loaded.model, seed), dataset_kwargs={"skip_prepare_dataset": True}
    )
    if phase.fsdp:
        agree_on_dtypes(loaded.model)
    return BCTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        train_dataset=Dataset.from_dict(columns),
        data_collator=partial(collate_trees, pad_id=eos if pad is None else pad) if in_trees else None,
        args=args,
    )


def teacher_match(episodes: Iterable[Episode], loaded: Loaded, encoder: Encoder, seed: int) -> dict[str, float]:
    """Return the shares of steps at which the greedy action, after the teacher's own history, is the teacher's: to the
    character, in canonical form; and the share that parses as a tool call. On at most 200 steps, drawn by key: counted
    first, then read again, so that no other stays in memory."""
    count = sum(1 for episode in episodes for _ in steps_of(episode))
    drawn = generator(seed, "match").sample(range(count), min(_MEASURED_STEPS, count))
    numbered = enumerate(step for episode in episodes for step in steps_of(episode))
    chosen, drawn_numbers = {}, set(drawn)
    for number, step in numbered:
        if number in drawn_numbers:
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


def _greedy(prompts: Sequence[list[int]], loaded: Loaded, encoder: Encoder) -> list[str]:
    texts: dict[int, str] = {}
    batch = 16 if loaded.model.device.type == "cpu" else 64  # a GPU's token costs as much for 64 rows
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
