"""Explanations: per turn of a session, or step of an episode, the score, the threshold, the author and the costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from r2v.console import text_table
from r2v.data.episode import Episode
from r2v.data.store import TrajectoryStore
from r2v.errors import InputError
from r2v.serve.accounts.traffic import read_traffic
from r2v.storage.paths import SERVERS, TRAFFIC

_HEADS = ("turn", "author", "why", "score", "threshold", "$ paid", "$ saved")
_NAMED = 5
"""Number of sessions that an error lists."""


def served_turns(root: Path) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the turns of every session by (server's folder, session), the latest session first."""
    turns: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for path in (root / SERVERS).glob(f"*/{TRAFFIC}"):
        for row in read_traffic(path.parent):
            if row["kind"] == "turn":
                turns.setdefault((str(path.parent), row["session"]), []).append(row)
    return dict(sorted(turns.items(), key=lambda item: -item[1][-1]["at"]))


def listed_sessions(root: Path) -> list[str]:
    """Return a line for each served session, the newest first. Raises InputError if there is none."""
    listed = [
        (
            *(name, folder, datetime.fromtimestamp(rows[-1]["at"]).isoformat(" ", "minutes"), str(len(rows))),
            *(str(sum(row["source"] == "small" for row in rows)), *_money(rows)),
        )
        for (folder, name), rows in served_turns(root).items()
    ]
    if not listed:
        raise InputError(f"no session in {root / SERVERS}; `r2v serve` and `r2v record` write them")
    heads = ("session", "server", "last turn", "turns", "by small", "$ paid", "$ saved")
    return text_table([heads, *listed], right=range(3, 7)).splitlines()


def nearest_sessions(root: Path) -> str:
    """Return a list of the newest sessions, for an error about an unknown one."""
    names = [name for _, name in served_turns(root)]
    listed = f"the newest of {len(names)} sessions: {', '.join(names[:_NAMED])}; r2v explain --sessions lists all"
    return listed if names else f"no session was served here ({root / SERVERS})"


def explained_session(root: Path, session: str) -> list[str]:
    """Return lines on a served session; empty if no server below the root has it."""
    lines: list[str] = []
    for (folder, name), rows in served_turns(root).items():
        if name == session:
            paid, saved = _money(rows)
            lines += [f"{folder}: session {session}, {len(rows)} turns, ${paid} paid, ${saved} saved"]
            lines += text_table([_HEADS, *map(_turn, rows)], right=range(3, 7)).splitlines()
    return lines


def _turn(row: Mapping[str, Any]) -> tuple[str, ...]:
    decision = row.get("decision") or {}
    return (
        str(row["turn"]),
        row["source"],
        str(decision.get("reason", "asked for")) + (f"; {row['trouble']}" if "trouble" in row else ""),
        _number(decision.get("score")),
        _number(decision.get("threshold")),
        *_money([row]),
    )


def _money(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the billed and the saved USD. Unknown amounts count at their worst case, and unplayed proposals too."""
    paid = saved = 0.0
    for row in rows:
        proposal = (row.get("decision") or {}).get("small") or {}
        paid += row["at_most"] if row["usd"] is None else row["usd"]
        paid += (proposal.get("usd") or 0.0) if row["source"] == "llm" else 0.0
        saved += row.get("saved") or 0.0
    return f"{paid:.6f}", f"{saved:.6f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def explained_episode(root: Path, episode: str) -> list[str]:
    """Return lines on an evaluated episode of r2v in each condition; empty if no results hold it."""
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
        why = ("", "", "")
        if decision is not None:
            why = (decision.reason, _number(decision.p_escalate), _number(decision.threshold))
        rows.append((str(step.step_idx), author, *why, step.action.raw_text[:60]))
    yield from text_table([("step", "author", "why", "score", "threshold", "action"), *rows], right=(3, 4)).splitlines()


def explained(root: Path, name: str) -> list[str]:
    """Return lines on a session or an episode of this name; empty if neither exists."""
    return explained_session(root, name) or explained_episode(root, name)
