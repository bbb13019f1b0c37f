"""Import: trajectories that other tools recorded, as a run under data/runs.

Everything is read once before anything is written: its content names the run, so that the same trajectories are not
imported twice, and bad records are told all together. What is imported was not executed by R2V (`Episode.executed`): it
may be cloned, and enters no table of results.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from r2v.data.episode import IMPORTED, Episode, to_line
from r2v.data.interchange.conversation import Conversation, to_episode
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.formats import FORMATS, recognise
from r2v.data.interchange.sources import read_source
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.data.tools import RecordedTool, Tools, tool_of_log, united
from r2v.errors import EmptyResult, InputError
from r2v.storage.artifact_manifest import json_sha256

log = logging.getLogger("r2v")

LOGS_BENCHMARK = "logs"
"""The benchmark of trajectories that belong to no environment: it has no task to play."""
_CONVERTER = 2
"""Changes with what the same records become."""
_SHOWN = 8
"""Bad records that are told one by one."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be imported and as what."""

    sources: tuple[str, ...]
    format: str = "auto"
    benchmark: str = LOGS_BENCHMARK
    model: str | None = None
    split: str = "train"
    limit: int | None = None


@dataclass
class Survey:
    """What reading all records came to."""

    formats: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[bool | None] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    bad: list[str] = field(default_factory=list)
    num_bad: int = 0
    sha256: str = ""
    tools: Tools = ()
    """Every tool that a log defines."""

    @property
    def episodes(self) -> int:
        """Trajectories that can be imported."""
        return self.formats.total()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A run, and what was read for it. `fresh` is False where these very trajectories were imported before."""

    run: RunManifest
    read: Survey
    fresh: bool


def import_trajectories(
    wanted: Wanted, registry: DataRegistry, *, skip_bad: bool = False, tags: Sequence[str] = (), notes: str = ""
) -> Imported:
    """Read the sources and write them as a run.

    Raises InputError, naming the first bad records by file and line, unless `skip_bad`; EmptyResult where there is
    nothing to import.
    """
    read = _survey(wanted)
    if read.num_bad and not skip_bad:
        raise InputError(
            f"{read.num_bad} of {read.num_bad + read.episodes} records are bad, first {read.bad[0]}; nothing was "
            "imported: mend them, or leave them out with --skip-bad"
        )
    if not read.episodes:
        raise EmptyResult(f"{', '.join(wanted.sources)}: no trajectory in it")
    config = {"import": {"version": _CONVERTER, "benchmark": wanted.benchmark, "content": read.sha256}}
    fingerprint = json_sha256(config)[:16]
    known = [run for run in registry.query(benchmark=wanted.benchmark) if run.fingerprint == fingerprint]
    if done := [run for run in known if run.status == "done"]:
        return Imported(run=done[-1], read=read, fresh=False)
    unfinished = next((run.run_id for run in known if run.status != "running"), None)
    model = wanted.model or (read.models.most_common(1)[0][0] if read.models else "unknown")
    with registry.begin_run(
        benchmark=wanted.benchmark,
        provider=IMPORTED,
        model_name=model,
        fingerprint=fingerprint,
        config=config | {"sources": list(wanted.sources), "formats": dict(read.formats)},
        tags=(IMPORTED, *tags),
        notes=notes,
        tools=read.tools,
        run_id=unfinished,
    ) as handle:
        kept = handle.store.done_keys()
        for episode in _episodes(wanted):
            if (episode.metadata.task_id, episode.metadata.seed, None) not in kept:
                about = replace(episode.metadata, run_id=handle.run_id)
                handle.store.append(replace(episode, metadata=about))
        run = handle.finish(expected=read.episodes)
    if run.status != "done":
        raise InputError(f"run {run.run_id}: its sources changed while they were read; import them again")
    return Imported(run=run, read=read, fresh=True)


def _survey(wanted: Wanted) -> Survey:
    """All records read, counted and hashed; none is kept."""
    read, whole = Survey(), hashlib.sha256()
    several: set[str] = set()

    def bad(text: str) -> None:
        read.num_bad += 1
        if len(read.bad) < _SHOWN:
            log.warning("  bad record: %s", text)
            read.bad.append(text)

    for episode in _episodes(wanted, bad):
        origin = episode.extra[IMPORTED]
        read.formats[origin["format"]] += 1
        read.outcomes[origin["outcome"]] += 1
        read.steps += len(episode.steps)
        if episode.metadata.teacher_model:
            read.models[episode.metadata.teacher_model] += 1
        read.tools, differing = united([*read.tools, *_tools(episode)])
        several.update(differing)
        whole.update(to_line(episode).encode() + b"\n")
    read.sha256 = whole.hexdigest()
    if several:
        log.warning("  the logs define %s in several ways; the first counts", ", ".join(sorted(several)))
    if read.num_bad > len(read.bad):
        log.warning("  and %d more bad records", read.num_bad - len(read.bad))
    return read


def _episodes(wanted: Wanted, bad: Callable[[str], None] = lambda text: None) -> Iterator[Episode]:
    """The trajectories as episodes, bad records left out and told. A second one of a task has the next seed."""
    seeds: Counter[str] = Counter()
    records = (record for source in wanted.sources for record in read_source(source, split=wanted.split))
    for place, record in islice(records, wanted.limit):
        try:
            name, talk = _conversation(record, wanted.format)
            task = talk.task_id or f"goal-{hashlib.sha256(talk.goal.encode('utf-8', 'replace')).hexdigest()[:12]}"
            talk = talk if wanted.model is None else replace(talk, model=wanted.model)
            episode = to_episode(
                talk, task_id=task, seed=seeds[task], benchmark=wanted.benchmark, format=name, source=_named(place)
            )
        except BadRecord as error:
            bad(f"{place}: {error}")
            continue
        seeds[task] += 1
        yield episode


def _tools(episode: Episode) -> Iterator[RecordedTool]:
    return filter(None, map(tool_of_log, episode.metadata.extra.get("tools", [])))


def _named(place: str) -> str:
    """A place without its folders: where a file lies is no part of what it holds."""
    return place.rpartition("/")[2]


def _conversation(record: Any, format: str) -> tuple[str, Conversation]:
    if isinstance(record, BadRecord):
        raise record
    name = recognise(record) if format == "auto" else format
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return name, FORMATS[name][1](record)
