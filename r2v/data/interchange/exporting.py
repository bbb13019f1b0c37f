"""Export: episodes as chat messages or in R2V's schema in a JSON Lines file, or as ATIF documents in a folder.

Executed episodes are marked (`executed`) and have their success and their run's tools; imported ones are written as
logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from r2v.data.episode import Episode, to_line
from r2v.data.interchange.atif import to_atif
from r2v.data.interchange.conversation import Conversation, of_episode
from r2v.data.interchange.messages import to_messages
from r2v.data.registry import DataRegistry
from r2v.data.store import write_episodes
from r2v.data.tools import Tools, chat_tool
from r2v.errors import EmptyResult, InputError
from r2v.storage.files import write_json, write_lines

log = logging.getLogger("r2v")

ExportFormat = Literal["messages", "atif", "episodes"]


def export_trajectories(episodes: Iterable[Episode], output: Path, format: ExportFormat, registry: DataRegistry) -> int:
    """Write the episodes, with the tools of their runs in `registry`, and return their number.

    `messages` and `episodes` (in the current schema) write the file `output`; `atif` writes a folder with one document
    per episode. Raise InputError if `output` exists, EmptyResult without episodes.
    """

    @cache
    def tools_of(run_id: str | None) -> Tools:
        try:
            return () if run_id is None else registry.get(run_id).tools or ()
        except InputError:  # made in another project
            log.warning("  run not in the registry, exporting without tools: run=%s registry=%s", run_id, registry.root)
            return ()

    if output.exists() or output.is_symlink():
        raise InputError(f"{output}: is there already; name another")
    following = iter(episodes)
    if (first := next(following, None)) is None:
        raise EmptyResult(f"{output}: there is no episode to export")
    whole = chain([first], following)
    if format != "atif":
        if format == "episodes":
            return write_episodes(output, whole)
        return write_lines(output, (to_line(message_record(e, tools_of(e.metadata.run_id))) for e in whole))
    output.mkdir(parents=True)
    number = 0
    for number, episode in enumerate(whole, start=1):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", episode.episode_id)[:100]
        write_json(output / f"{number:06d}-{name}.json", atif_record(episode, tools_of(episode.metadata.run_id)))
    return number


def message_record(episode: Episode, tools: Tools = ()) -> dict[str, Any]:
    """Return the episode as a record of chat messages. `tools`: those of its run."""
    return to_messages(_conversation(episode, tools), _about(episode), joined=episode.executed)


def atif_record(episode: Episode, tools: Tools = ()) -> dict[str, Any]:
    """Return the episode as an ATIF document. `tools`: those of its run."""
    return to_atif(_conversation(episode, tools), _about(episode))


def _conversation(episode: Episode, tools: Tools) -> Conversation:
    talk = of_episode(episode)  # an imported run has the tools of all its logs, an imported episode only its own
    return replace(talk, tools=tuple(map(chat_tool, tools))) if episode.executed and not talk.tools else talk


def _about(episode: Episode) -> dict[str, Any]:
    return {
        "episode_id": episode.episode_id,
        "benchmark": episode.metadata.benchmark,
        "run_id": episode.metadata.run_id,
        "condition": episode.condition,
        "method": episode.method,
        "executed": episode.executed,
        "env_fault": episode.env_fault,
    }
