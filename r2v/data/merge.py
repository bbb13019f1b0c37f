"""Merge and deduplication of runs: two streaming passes into one file, no episode held in memory.

The first pass decides, by `Episode.dedup_key`, which lines stay, and finds ids shared by several of them (two teachers
on the same task and seed); the second writes. Episodes with a shared id are renamed `<id>/a<action_hash>`, so that an
id is unique within a file, for any order of the runs. The same runs give the same bytes.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Literal

from r2v.data.episode import EPISODE_SCHEMA, Episode, parse_episode, to_line
from r2v.data.split import split_of
from r2v.data.store import TrajectoryStore
from r2v.errors import UsageError
from r2v.randomness import digest
from r2v.storage.files import content_sha256, write_json, write_lines

log = logging.getLogger(__name__)


Keep = Literal["first", "best"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One run's file. `growing`: its last line may be unfinished and is then skipped."""

    run_id: str
    path: Path
    growing: bool = False


@dataclass(frozen=True, kw_only=True)
class _MergePlan:
    """Result of the first pass: for each line its source, hash of its id, rank, and 1 if it stays."""

    source: array[int] = field(default_factory=lambda: array("H"))
    ident: array[int] = field(default_factory=lambda: array("Q"))
    rank: array[float] = field(default_factory=lambda: array("d"))
    stays: bytearray = field(default_factory=bytearray)
    duplicates: Counter[tuple[str, str]] = field(default_factory=Counter)
    leaked: Counter[str] = field(default_factory=Counter)

    def shared_ids(self) -> set[int]:
        """Return the hashes of ids shared by several lines that stay."""
        seen: set[int] = set()
        shared: set[int] = set()
        for ident in compress(self.ident, self.stays):
            (shared if ident in seen else seen).add(ident)
        return shared


def merge(
    sources: Sequence[Source], output: Path, *, deduplicate: bool = True, keep: Keep = "first"
) -> TrajectoryStore:
    """Write the sources' episodes to `output` and a record of the merge to `<output>.meta.json`.

    Of duplicates `first` keeps the one of the earlier source; `best` the successful one, then the one with the higher
    partial score, then the earlier. Tasks of the evaluation split are logged. A million episodes take about 200 MB of
    memory.
    """
    if keep not in ("first", "best"):
        raise UsageError(f"keep={keep}: allowed: first, best")
    plan = _plan(sources, deduplicate=deduplicate, by_rank=keep == "best")
    rows = Counter(sources[index].run_id for index in plan.source)
    written = write_lines(output, _kept_lines(sources, plan))
    for run_id, episodes in plan.leaked.items():
        log.warning(
            "merged episodes of the evaluation split, do not train on them: file=%s episodes=%d run=%s",
            *(output, episodes, run_id),
        )
    write_json(
        output.with_name(f"{output.name}.meta.json"),
        {
            "schema_version": EPISODE_SCHEMA,
            "stage": "merge",
            "deduplicate": deduplicate,
            "keep": keep,
            "inputs": [
                {
                    "run_id": s.run_id,
                    "path": s.path.as_posix(),
                    "sha256": content_sha256(s.path),
                    "rows": rows[s.run_id],
                }
                for s in sources
            ],
            "duplicates": [
                {"kept": pair[0], "dropped": pair[1], "count": n} for pair, n in sorted(plan.duplicates.items())
            ],
            "rows": written,
            "sha256": content_sha256(output),
        },
    )
    return TrajectoryStore(output)


def unique(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes without later duplicates."""
    seen: set[bytes] = set()
    for episode in episodes:
        key = _key(episode)
        if key not in seen:
            seen.add(key)
            yield episode


def _plan(sources: Sequence[Source], *, deduplicate: bool, by_rank: bool) -> _MergePlan:
    plan = _MergePlan()
    best: dict[bytes, int] = {}
    for line, (index, episode) in enumerate(_read(sources)):
        plan.source.append(index)
        plan.ident.append(_ident(episode.episode_id))
        plan.rank.append(2 * episode.success + episode.partial_score if by_rank else 0)
        plan.stays.append(True)
        if _is_evaluation(episode):
            plan.leaked[sources[index].run_id] += 1
        earlier = best.setdefault(_key(episode), line) if deduplicate else line
        if earlier != line:
            winner, loser = (line, earlier) if plan.rank[line] > plan.rank[earlier] else (earlier, line)
            best[_key(episode)] = winner
            plan.stays[loser] = False
            plan.duplicates[sources[plan.source[winner]].run_id, sources[plan.source[loser]].run_id] += 1
    return plan


def _kept_lines(sources: Sequence[Source], plan: _MergePlan) -> Iterator[str]:
    shared = plan.shared_ids()
    given: Counter[str] = Counter()
    lines = (line for s in sources for line in TrajectoryStore(s.path).iter_lines(growing=s.growing))
    for line, ident in compress(zip(lines, plan.ident, strict=False), plan.stays):
        if ident not in shared:
            yield line
            continue
        episode = parse_episode(line)
        name = f"{episode.episode_id}/a{episode.action_hash}"
        given[name] += 1
        yield to_line(replace(episode, episode_id=name if given[name] == 1 else f"{name}-{given[name]}"))


def _read(sources: Sequence[Source]) -> Iterator[tuple[int, Episode]]:
    for index, source in enumerate(sources):
        for episode in TrajectoryStore(source.path).iter_episodes(growing=source.growing):
            yield index, episode


def _key(episode: Episode) -> bytes:
    return digest(*map(str, episode.dedup_key))[:16]


def _ident(episode_id: str) -> int:
    return int.from_bytes(digest(episode_id)[:8], "big")


def _is_evaluation(episode: Episode) -> bool:
    about = episode.metadata
    return (about.split or split_of(about.template_id or about.task_id)) == "evaluation"
