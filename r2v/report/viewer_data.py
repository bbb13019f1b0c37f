"""Viewer data: the episodes of an evaluation as the report's page reads them.

`data/episodes-NNNN.js` each hold some tasks with all their episodes, so that two methods on one task are one read. A
page opened from a disk may read no file but a script, so each is one call, `r2vShard(N, "<gzip, base64>")`, of inert
text: what a benchmark or a model wrote is never markup and never code. The index, one short row an episode, is in the
page itself.

A perturbed step is shown beside the page as the world gave it, wherever some episode of the task was shown that very
page (by its SHA-256): nothing is executed to make a report.

The folder stays copyable (`ViewerLimits`): longer observations are cut, and once there are too many bytes the steps of
the tasks that are left stay out. Both are said in the page.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.config.methods import OURS, WEAK
from r2v.data.episode import Episode, Step, parse_episode, to_line
from r2v.evaluation.setup import MAIN, OPERATING_POINT, Setup, stored_episodes
from r2v.report.contrast import Contrast, contrasted
from r2v.router.labels import read_rows
from r2v.storage.files import write_text

SHARD = "data/episodes-{:04d}.js"
Gains = dict[tuple[str, str, str, int], float]
"""What an LLM step gains, by (condition, method whose episode it is and who plays on, episode, step)."""
State = tuple[str, str, tuple[str, ...]]
"""(condition, episode, actions so far)."""


@dataclass(frozen=True, kw_only=True)
class ViewerLimits:
    """Limits that keep the folder copyable: by default below some 30 MB in all."""

    shard_bytes: int = 1 << 20
    """Of text in a shard, before it is packed."""
    packed_bytes: int = 24 << 20
    """Of all shards, packed."""
    characters: int = 20_000
    """Of one observation."""


@dataclass(kw_only=True)
class Index:
    """What the page knows of every episode before it reads one. Not frozen: it grows with the shards."""

    contrast: Contrast
    """The episodes that the page shows side by side."""
    rows: list[list[Any]] = field(default_factory=list)
    """[condition, method, task, seed, outcome, steps, LLM steps, USD, shard or -1, perturbed], the names as numbers."""
    names: dict[str, list[str]] = field(default_factory=lambda: {"condition": [], "method": [], "task": []})
    left_out: int = 0
    """Episodes whose steps are not here."""

    def number(self, kind: str, name: str) -> int:
        """The number of a name."""
        known = self.names[kind]
        if name not in known:
            known.append(name)
        return known.index(name)


def write_episodes(
    results: Path, setup: Setup, folder: Path, limits: ViewerLimits = ViewerLimits(), condition: str | None = None
) -> Index:
    """Write every shard into `folder` and return the index. condition: that of the episodes shown side by side, the
    first where None. Raises InputError for an episodes file that is missing or bad."""
    contrast = Contrast(condition=condition or setup.conditions[0], methods=contrasted(setup.methods))
    index, shard, written = Index(contrast=contrast), 0, 0
    gains = dict(_gains(results, setup))
    held: dict[str, Any] = {}
    size = 0
    for task, episodes in _by_task(results, setup):
        pages, gained = _pages(episodes), _gained(episodes, gains)
        shown = [_shown(episode, pages, gained, limits.characters) for episode in episodes]
        contrast.offer(task, episodes, shown)
        fits = written + size // 4 < limits.packed_bytes
        for episode in episodes:
            index.rows.append(_row(index, episode, shard if fits else -1))
        if not fits:
            index.left_out += len(episodes)
            continue
        held[task] = shown
        size += sum(len(step.observation.raw_text) for episode in episodes for step in episode.steps)
        if size >= limits.shard_bytes:
            written += _write_shard(folder, shard, held)
            shard, held, size = shard + 1, {}, 0
    if held:
        _write_shard(folder, shard, held)
    return index


def _by_task(results: Path, setup: Setup) -> Iterator[tuple[str, list[Episode]]]:
    """Every task with its episodes of the main table. What waits for its task is kept packed."""
    waiting: dict[str, list[bytes]] = {}
    for episode in stored_episodes(results, setup):
        if episode.extra.get(OPERATING_POINT, MAIN) == MAIN:
            packed = zlib.compress(to_line(episode).encode(), 1)
            waiting.setdefault(episode.metadata.task_id, []).append(packed)
    for task, packed_episodes in waiting.items():
        yield task, [parse_episode(zlib.decompress(packed).decode()) for packed in packed_episodes]


def _row(index: Index, episode: Episode, shard: int) -> list[Any]:
    outcome = 2 if episode.env_fault is not None else int(episode.success)
    return [
        index.number("condition", episode.condition),
        index.number("method", episode.method),
        index.number("task", episode.metadata.task_id),
        episode.metadata.seed,
        outcome,
        len(episode.steps),
        sum(step.action_source == "llm_fallback" for step in episode.steps),
        round(episode.billed_cost, 6),
        shard,
        int(any(step.perturbations for step in episode.steps)),
    ]


def _pages(episodes: Iterable[Episode]) -> dict[str, str]:
    """The pages that were shown untouched, by their hash."""
    texts = {step.observation.raw_text for episode in episodes for step in episode.steps if not step.perturbations}
    return {hashlib.sha256(text.encode()).hexdigest(): text for text in sorted(texts)}


def _gains(results: Path, setup: Setup) -> Iterator[tuple[tuple[str, str, str, int], float]]:
    for condition in setup.conditions:
        path = results / "gains" / f"{condition}.jsonl"
        for row in read_rows(path) if path.exists() else ():
            if row.gain is not None:
                yield (condition, OURS if row.round else WEAK, row.episode_id, row.step_idx), row.gain


def _gained(episodes: Iterable[Episode], gains: Gains) -> dict[State, tuple[float, str]]:
    """The gains by state, for it is the same for every method that came there, and who plays on."""
    found: dict[State, tuple[float, str]] = {}
    for episode in episodes:
        actions = tuple(step.action.raw_text for step in episode.steps)
        for step in range(len(actions)):
            gain = gains.get((episode.condition, episode.method, episode.episode_id, step))
            if gain is not None:
                found[episode.condition, episode.episode_id, actions[:step]] = gain, episode.method
    return found


def _shown(
    episode: Episode, pages: dict[str, str], gained: dict[State, tuple[float, str]], most: int
) -> dict[str, Any]:
    """An episode as the viewer reads it; its place in the index finds it: (condition, method, seed)."""
    actions = tuple(step.action.raw_text for step in episode.steps)
    steps = [_step(step, pages, most) for step in episode.steps]
    for number, step in enumerate(steps):
        if (found := gained.get((episode.condition, episode.episode_id, actions[:number]))) is not None:
            step["gain"], step["plays_on"] = found
    return {
        "condition": episode.condition,
        "method": episode.method,
        "seed": episode.metadata.seed,
        "goal": episode.metadata.goal,
        "template": episode.metadata.template_id,
        "termination": episode.termination,
        "fault": episode.env_fault,
        "partial": episode.partial_score,
        "success": episode.success,
        "usd": round(episode.billed_cost, 6),
        "steps": steps,
    }


def _step(step: Step, pages: dict[str, str], most: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"page": _cut(step.observation.raw_text, most), "action": step.action.raw_text}
    shown["by"] = step.action_source
    if step.proposal is not None and step.proposal.text != step.action.raw_text:
        shown["proposed"] = step.proposal.text
    if step.reward:
        shown["reward"] = step.reward
    if step.perturbations:
        shown["hits"] = [[hit.category, hit.mode, hit.canary] for hit in step.perturbations]
        clean = pages.get(step.clean_observation_sha256 or "")
        if clean is not None and clean != step.observation.raw_text:
            shown["clean"] = _cut(clean, most)
    if (decision := step.decision) is not None:
        shown["score"], shown["threshold"], shown["reason"] = decision.p_escalate, decision.threshold, decision.reason
        if decision.candidates:
            shown["candidates"] = [[one.text, one.logprob, one.score] for one in decision.candidates]
            shown["chosen"] = decision.chosen_index
    if step.label is not None and step.label.safety_violation:
        shown["unsafe"] = True
    return shown


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    left_out = len(text) - 2 * half
    line = f"[... {left_out:,} characters are left out of this report; the episodes file has them ...]"
    return f"{text[:half]}\n{line}\n{text[-half:]}"


def _write_shard(folder: Path, number: int, tasks: dict[str, Any]) -> int:
    """Write one and return its size in bytes."""
    text = json.dumps(tasks, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    write_text(folder / SHARD.format(number), f'r2vShard({number},"{packed}");\n')
    return len(packed)
