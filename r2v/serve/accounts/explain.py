"""Explanations: per turn of a session, or step of an episode, the score, the threshold, the author and the costs.

for line in explained_session(Path(), "my-session"): print(line)
for line in explained_episode(Path(), "desk-0007/s1"): print(line)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r2v.console import text_table
from r2v.data.episode import Episode
from r2v.data.store import TrajectoryStore
from r2v.serve.accounts.traffic import read_traffic
from r2v.storage.paths import SERVERS, TRAFFIC

_HEADS = ("turn", "author", "why", "score", "threshold", "$ paid", "$ small", "$ LLM")


def explained_session(root: Path, session: str) -> list[str]:
    """Return lines on a served session; empty if no server here has it. An amount with ~ is an estimate: the session's
    mean for a turn of that model."""
    lines: list[str] = []
    for path in sorted((root / SERVERS).glob(f"*/{TRAFFIC}")):
        rows = [row for row in read_traffic(path.parent) if row["kind"] == "turn" and row["session"] == session]
        if rows:
            paid = sum(map(_paid, rows))
            lines += [f"{path.parent}: session {session}, {len(rows)} turns, ${paid:.4f}"]
            lines += text_table([_HEADS, *_turns(rows)], right=range(3, 8)).splitlines()
    return lines


def _turns(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    small = _mean(_small(row) for row in rows)
    llm = _mean(row["usd"] for row in rows if row["source"] == "llm")
    for row in rows:
        decision = row.get("decision") or {}
        own = _small(row)
        yield (
            str(row["turn"]),
            row["source"],
            str(decision.get("reason", "asked for")) + (f"; {row['trouble']}" if "trouble" in row else ""),
            _number(decision.get("score")),
            _number(decision.get("threshold")),
            _usd(_paid(row)),
            _usd(own) if own is not None else _guess(small),
            _usd(row["usd"]) if row["source"] == "llm" else _guess(llm),
        )


def _small(row: Mapping[str, Any]) -> float | None:
    """Return what the small model's proposal cost, played or not: as billed, else at its list price."""
    small = (row.get("decision") or {}).get("small")
    if small is None:
        return None
    return float(small["cost"] if small["usd"] is None else small["usd"] or small["cost"])


def _paid(row: Mapping[str, Any]) -> float:
    own = _small(row) or 0.0
    acted = row["usd"] if row["usd"] is not None else row["at_most"]
    return float(acted) + (own if row["source"] == "llm" else 0.0)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _usd(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.5f}"


def _guess(value: float | None) -> str:
    return "" if value is None else f"~{value:.5f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def explained_episode(root: Path, episode: str) -> list[str]:
    """Return lines on an evaluated episode of r2v, in each condition that has it; empty if none has."""
    lines: list[str] = []
    for path in sorted((root / "results").glob("*/episodes/*/r2v.jsonl*")):
        for played in TrajectoryStore(path).iter_episodes():
            if episode in (played.episode_id, played.metadata.task_id):
                lines += _episode(path, played)
    return lines


def _episode(path: Path, episode: Episode) -> Iterator[str]:
    how = "succeeded" if episode.success else "failed"
    yield (
        f"{path}: {episode.episode_id}, {episode.condition}, {how}; {episode.num_llm_fallbacks} of "
        f"{len(episode.steps)} steps by the LLM, ${episode.billed_cost:.5f}"
    )
    rows = []
    for step in episode.steps:
        decision = step.decision
        author = "small" if step.action_source == "slm" else "llm"
        score, threshold, reason = "", "", ""
        if decision is not None:
            score, threshold, reason = _number(decision.p_escalate), _number(decision.threshold), decision.reason
        rows.append((str(step.step_idx), author, reason, score, threshold, step.action.raw_text[:60]))
    yield from text_table([("step", "author", "why", "score", "threshold", "action"), *rows], right=(3, 4)).splitlines()


def explained(root: Path, name: str) -> list[str]:
    """Return lines on a session or an episode; empty if there is neither."""
    return explained_session(root, name) or explained_episode(root, name)
