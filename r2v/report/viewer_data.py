"""Viewer data: the episodes of an evaluation as the report's page reads them.

`data/episodes-NNNN.js` each hold some tasks with all their episodes, so that two methods on one task are one read. A
page opened from a disk may read no file but a script, so each is one call, `r2vShard(N, "<gzip, base64>")`, of inert
text: the words of a benchmark or a model are never markup and never code. The index, one short row an episode, is in
the page itself.

A perturbed step is shown next to the world's own page, wherever some episode of the task was shown that page (by its
SHA-256): nothing is executed to make a report.

The folder stays copyable (`ViewerLimits`): longer observations are cut, and beyond a number of bytes the steps of
further tasks are left out. The page notes both.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from r2v.config.methods import OURS, WEAK
from r2v.data.episode import Episode, Step
from r2v.evaluation.setup import Setup, stored_episodes
from r2v.report.contrast import Contrast, Shown, contrasted
from r2v.router.labels import read_rows
from r2v.storage.files import write_text

SHARD = "data/episodes-{:04d}.js"
Gains = dict[tuple[str, str, str, int], float]
"""Gain of an LLM step, by (condition, method that played the episode and plays on, episode, step)."""
State = tuple[str, int, tuple[str, ...]]
"""(condition, seed, actions so far) of a task."""


@dataclass(frozen=True, kw_only=True)
class ViewerLimits:
    """Limits that keep the folder copyable: by default below some 30 MB in all."""

    shard_bytes: int = 1 << 20
    """Bytes of text in a shard, before compression."""
    packed_bytes: int = 24 << 20
    """Bytes of all shards, compressed."""
    characters: int = 20_000
    """Characters of one observation."""


@dataclass(kw_only=True)
class Index:
    """The page's entries of all episodes, from which it loads their shards. Not frozen: it grows with the shards."""

    contrast: Contrast
    """The episodes that the page shows side by side."""
    rows: list[list[Any]] = field(default_factory=list)
    """[condition, method, task, seed, outcome, steps, LLM steps, USD, shard or -1, perturbed], the names as numbers."""
    numbers: dict[str, dict[str, int]] = field(default_factory=lambda: {"condition": {}, "method": {}, "task": {}})
    left_out: int = 0
    """Episodes whose steps are left out."""

    def number(self, kind: str, name: str) -> int:
        """Return the number of a name."""
        return self.numbers[kind].setdefault(name, len(self.numbers[kind]))


def write_episodes(
    results: Path, setup: Setup, folder: Path, limits: ViewerLimits = ViewerLimits(), condition: str | None = None
) -> Index:
    """Write every shard into `folder` and return the index. condition: of the episodes shown side by side; None:
    the first. Raises InputError for an episodes file that is missing or bad."""
    contrast = Contrast(condition=condition or setup.conditions[0], methods=contrasted(setup.methods))
    index, shard, written = Index(contrast=contrast), 0, 0
    gains = dict(_gains(results, setup))
    held: dict[str, Any] = {}
    size = 0
    for task, episodes in _by_task(results, setup, gains):
        characters = sum(len(step["page"]) for episode in episodes for step in episode["steps"])
        _finish(episodes, limits.characters)
        contrast.offer(task, episodes)
        fits = written + size // 4 < limits.packed_bytes
        index.rows += [_row(index, task, episode, shard if fits else -1) for episode in episodes]
        if not fits:
            index.left_out += len(episodes)
            continue
        held[task] = episodes
        size += characters
        if size >= limits.shard_bytes:
            written += _write_shard(folder, shard, held)
            shard, held, size = shard + 1, {}, 0
    if held:
        _write_shard(folder, shard, held)
    return index


def _by_task(results: Path, setup: Setup, gains: Gains) -> Iterator[tuple[str, list[Shown]]]:
    """Yield every task with its episodes of the main table, pages uncut; episodes are kept compressed until then."""
    waiting: dict[str, list[bytes]] = {}
    for episode in stored_episodes(results, replace(setup, frontier={})):
        text = json.dumps(_shown(episode, gains), ensure_ascii=False, separators=(",", ":"))
        waiting.setdefault(episode.metadata.task_id, []).append(zlib.compress(text.encode(), 1))
    for task, packed_episodes in waiting.items():
        yield task, [json.loads(zlib.decompress(packed)) for packed in packed_episodes]


def _row(index: Index, task: str, episode: Shown, shard: int) -> list[Any]:
    steps = episode["steps"]
    return [
        index.number("condition", episode["condition"]),
        index.number("method", episode["method"]),
        index.number("task", task),
        episode["seed"],
        2 if episode["fault"] is not None else int(episode["success"]),
        len(steps),
        sum(step["by"] == "llm_fallback" for step in steps),
        episode["usd"],
        shard,
        int(any("hits" in step for step in steps)),
    ]


def _gains(results: Path, setup: Setup) -> Iterator[tuple[tuple[str, str, str, int], float]]:
    for condition in setup.conditions:
        path = results / "gains" / f"{condition}.jsonl"
        for row in read_rows(path) if path.exists() else ():
            if row.gain is not None:
                yield (condition, OURS if row.round else WEAK, row.episode_id, row.step_idx), row.gain


def _finish(episodes: list[Shown], most: int) -> None:
    """Complete the episodes of one task by each other, and cut their pages to `most` characters: a perturbed step has
    the world's own page where some episode was shown it untouched (by its SHA-256), and every step has the gain of its
    state, the same for all methods that reached it, with the method that plays on."""
    untouched = {step["page"] for episode in episodes for step in episode["steps"] if "hits" not in step}
    pages = {hashlib.sha256(text.encode()).hexdigest(): text for text in untouched}
    gained: dict[State, tuple[float, str]] = {}
    for episode in episodes:
        for state, step in _states(episode):
            if "gain" in step:
                gained[state] = step["gain"], episode["method"]
    for episode in episodes:
        for state, step in _states(episode):
            if "clean" in step:
                clean = pages.get(step["clean"], step["page"])
                step["clean"] = _cut(clean, most)
                if clean == step["page"]:
                    del step["clean"]
            step["page"] = _cut(step["page"], most)
            if state in gained:
                step["gain"], step["plays_on"] = gained[state]


def _states(episode: Shown) -> Iterator[tuple[State, dict[str, Any]]]:
    """Yield each step of an episode with the state that it begins in."""
    actions = tuple(step["action"] for step in episode["steps"])
    for number, step in enumerate(episode["steps"]):
        yield (episode["condition"], episode["seed"], actions[:number]), step


def _shown(episode: Episode, gains: Gains) -> Shown:
    """Return an episode in the viewer's form; (condition, method, seed) identify it within its task. A perturbed step
    has the SHA-256 of the page that the world gave, and a step the gain executed there, until `_finish`."""
    steps = [_step(step) for step in episode.steps]
    for number, step in enumerate(steps):
        if (gain := gains.get((episode.condition, episode.method, episode.episode_id, number))) is not None:
            step["gain"] = gain
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


def _step(step: Step) -> dict[str, Any]:
    shown: dict[str, Any] = {"page": step.observation.raw_text, "action": step.action.raw_text}
    shown["by"] = step.action_source
    if step.proposal is not None and step.proposal.text != step.action.raw_text:
        shown["proposed"] = step.proposal.text
    if step.reward:
        shown["reward"] = step.reward
    if step.perturbations:
        shown["hits"] = [[hit.category, hit.mode, hit.canary] for hit in step.perturbations]
        shown["clean"] = step.clean_observation_sha256
    if (decision := step.decision) is not None:
        shown["score"], shown["threshold"], shown["reason"] = decision.p_escalate, decision.threshold, decision.reason
        if decision.candidates:
            shown["candidates"] = [
                [candidate.text, candidate.logprob, candidate.score] for candidate in decision.candidates
            ]
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
    """Write a shard and return its size in bytes."""
    text = json.dumps(tasks, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    write_text(folder / SHARD.format(number), f'r2vShard({number},"{packed}");\n')
    return len(packed)
