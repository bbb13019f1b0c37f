"""Import: trajectories recorded by other tools, as a run under data/runs.

A file, the files of a folder or a hub data set is read record by record, each in the format that recognises it; an
unreadable record yields a `BadRecord` with the reason, so that one bad line hides no other. Everything is read once
before anything is written: the content's hash identifies the run, so that the same trajectories are not imported twice,
and all bad records are reported together. Imported episodes were not executed by R2V (`Episode.executed`): they may be
cloned, and enter no table of results.
"""

from __future__ import annotations

import hashlib
import logging
import re
import warnings
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from r2v.constraints import shown
from r2v.data.episode import IMPORTED, Episode, to_line
from r2v.data.interchange.atif import from_atif, is_atif
from r2v.data.interchange.conversation import Conversation, to_episode
from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.inspect_logs import from_inspect, is_inspect_log, samples_of
from r2v.data.interchange.litellm import from_litellm, sessions_of
from r2v.data.interchange.messages import from_messages, is_messages
from r2v.data.interchange.responses import from_responses, is_items, is_responses
from r2v.data.interchange.rows import from_completion, from_sharegpt, from_tau_bench
from r2v.data.interchange.served import ServedSession, from_served, is_served, served_sessions
from r2v.data.interchange.sessions import SessionLog, from_claude_code, from_codex, grouped
from r2v.data.interchange.sweagent import from_sweagent, is_sweagent
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.data.schema import parse_json
from r2v.data.tools import RecordedTool, Tools, tool_of_log, united
from r2v.errors import EmptyResult, InputError
from r2v.storage.artifact_manifest import json_sha256
from r2v.storage.compression import lines_of

Looks = Callable[[Any], bool]


def _has(*names: str) -> Looks:
    return lambda record: isinstance(record, dict) and record.keys() >= set(names)


def _session_of(client: str) -> Looks:
    return lambda record: isinstance(record, SessionLog) and record.client == client


def _is_logged_request(record: Any) -> bool:
    return any(_has("response", name)(record) for name in ("messages", "request", "proxy_server_request"))


FORMATS: dict[str, tuple[Looks, Callable[[Any], Conversation]]] = {
    "claude-code": (_session_of("claude-code"), from_claude_code),
    "codex": (_session_of("codex"), from_codex),
    "served": (lambda record: isinstance(record, ServedSession), from_served),
    "atif": (is_atif, from_atif),
    "inspect": (_has("messages", "epoch", "target"), from_inspect),
    "litellm": (_is_logged_request, from_litellm),
    "tau-bench": (_has("traj"), from_tau_bench),
    "completion": (_has("prompt", "completion"), from_completion),
    "sharegpt": (_has("conversations"), from_sharegpt),
    "responses": (is_responses, from_responses),
    "sweagent": (is_sweagent, from_sweagent),
    "messages": (is_messages, from_messages),
}
"""Name -> (predicate of records, reader of a record), in the order in which they are tried."""


def recognise(record: Any) -> str:
    """Return the name of a record's format. Raise BadRecord if no format matches."""
    for name, (looks_like, _) in FORMATS.items():
        if looks_like(record):
            return name
    fields = ", ".join(map(shown, list(record)[:8])) if isinstance(record, dict) else type(record).__name__
    raise BadRecord(f"no trajectory of a known format ({', '.join(FORMATS)}): it has {fields}")


Record = tuple[str, Any]
"""(location, record), or (location, BadRecord)."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj", ".eval", ".parquet", ".zst")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def read_source(source: str, *, split: str = "train") -> Iterator[Record]:
    """Yield the records of a file, of all files below a folder sorted by name, or of a hub data set's split.

    Raise InputError if the source is missing or has no readable file.
    """
    path = Path(source)
    if is_served(path):
        yield from served_sessions(path)
    elif path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise InputError(f"{source}: holds no file of {', '.join(SUFFIXES)}")
        for file in files:
            yield from read_file(file)
    elif path.is_file():
        yield from read_file(path)
    elif path.exists() or path.is_symlink():
        raise InputError(f"{source}: neither a file nor a folder; name one")
    elif _DATASET.fullmatch(source):
        yield from _hub(source, split)
    else:
        raise InputError(f"{source}: no such file or folder, and no name of a hub data set (owner/name)")


def read_file(path: Path) -> Iterator[Record]:
    """Yield the records of a file by its suffix, by default as JSON Lines."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".eval":
        yield from _inspect_archive(path)
    elif path.suffix in (".json", ".traj"):
        yield from _whole(path)
    else:
        yield from grouped(_lines(path))


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(lines_of(path), start=1):
        if text := line.removeprefix(BOM_UTF8).strip():
            yield f"{path}:{number}", _json(text)


def _whole(path: Path) -> Iterator[Record]:
    value = _json(path.read_bytes().removeprefix(BOM_UTF8))
    records = [value] if isinstance(value, BadRecord) else list(rows_of(value))
    for number, record in enumerate(records):
        yield (str(path) if len(records) == 1 else f"{path}[{number}]"), record


def rows_of(value: Any) -> Iterator[Any]:
    """Yield the records of a JSON file: the items of a list, the samples of an inspect log, or the value itself."""
    if is_inspect_log(value):
        yield from samples_of(value)
    elif isinstance(value, list) and value and not is_messages(value) and not is_items(value):
        yield from value
    else:
        yield value


def _inspect_archive(path: Path) -> Iterator[Record]:
    """Yield the samples of an inspect log in its own form, an archive of JSON files."""
    try:
        with ZipFile(path) as archive:
            head = _json(archive.read("header.json"))
            for name in sorted(archive.namelist()):
                if name.startswith("samples/"):
                    sample = _json(archive.read(name))
                    about = {"eval": head.get("eval")} if isinstance(head, dict) else {}
                    yield f"{path}!{name}", {**sample, **about} if isinstance(sample, dict) else sample
    except (BadZipFile, KeyError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{path}: no log of inspect that this Python unpacks ({reason}); convert it to .json"
        ) from error


def _json(text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        return BadRecord(f"no JSON ({' '.join(str(error).split())[:120]})")


def _parquet(path: Path) -> Iterator[Record]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=64):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", without_nulls(record)
    except (ArrowException, OSError) as error:
        raise InputError(
            f"{path}: row {number + 1}: not a parquet file ({' '.join(str(error).split())[:160]})"
        ) from error


def _hub(name: str, split: str) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        table = load_dataset(name, split=split)
    except Exception as error:  # the library raises many types, its own and others'
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(
            f"{name}: no such file or folder here, and the hub data set cannot be loaded ({reason}); with "
            "HF_HUB_OFFLINE=1 it has to be in the cache already"
        ) from error
    for number, record in enumerate(table, start=1):
        yield f"{name}[{split}]:{number}", without_nulls(record)


def without_nulls(value: Any) -> Any:
    """Return a row without null fields: columns give every record the fields of all."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


log = logging.getLogger("r2v")

LOGS_BENCHMARK = "logs"
"""Benchmark of trajectories without an environment; it has no tasks to play."""
_CONVERTER = 3
"""Version of the conversion; incremented when the same records give other episodes."""
_SHOWN = 8
"""Number of bad records logged one by one."""


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Sources of an import and its settings."""

    sources: tuple[str, ...]
    format: str = "auto"
    benchmark: str = LOGS_BENCHMARK
    model: str | None = None
    split: str = "train"
    limit: int | None = None


@dataclass
class Survey:
    """Result of reading all records."""

    formats: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[bool | None] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    bad: list[str] = field(default_factory=list)
    num_bad: int = 0
    sha256: str = ""
    tools: Tools = ()
    """All tools defined by the logs."""

    @property
    def episodes(self) -> int:
        """Number of trajectories that can be imported."""
        return self.formats.total()


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Imported run and its survey. `fresh` is False if the same trajectories were imported before."""

    run: RunManifest
    read: Survey
    fresh: bool


def import_trajectories(
    request: ImportRequest, registry: DataRegistry, *, skip_bad: bool = False, tags: Sequence[str] = (), notes: str = ""
) -> Imported:
    """Read the sources and write them as a run.

    Raise InputError with the first bad record's location, unless `skip_bad`; EmptyResult without trajectories.
    """
    read = _survey(request)
    if read.num_bad and not skip_bad:
        raise InputError(
            f"{read.num_bad} of {read.num_bad + read.episodes} records are bad, first {read.bad[0]}; nothing was "
            "imported: mend them, or leave them out with --skip-bad"
        )
    if not read.episodes:
        raise EmptyResult(f"{', '.join(request.sources)}: no trajectory in it")
    config = {"import": {"version": _CONVERTER, "benchmark": request.benchmark, "content": read.sha256}}
    fingerprint = json_sha256(config)[:16]
    earlier = [run for run in registry.query(benchmark=request.benchmark) if run.fingerprint == fingerprint]
    if done := [run for run in earlier if run.status == "done"]:
        return Imported(run=done[-1], read=read, fresh=False)
    unfinished = next((run.run_id for run in earlier if run.status != "running"), None)
    model = request.model or (read.models.most_common(1)[0][0] if read.models else "unknown")
    with registry.begin_run(
        benchmark=request.benchmark,
        provider=IMPORTED,
        model_name=model,
        fingerprint=fingerprint,
        config=config | {"sources": list(request.sources), "formats": dict(read.formats)},
        tags=(IMPORTED, *tags),
        notes=notes,
        tools=read.tools,
        run_id=unfinished,
    ) as handle:
        stored = handle.store.done_keys()
        for episode in _episodes(request):
            if (episode.metadata.task_id, episode.metadata.seed, None) not in stored:
                about = replace(episode.metadata, run_id=handle.run_id)
                handle.store.append(replace(episode, metadata=about))
        run = handle.finish(expected=read.episodes)
    if run.status != "done":
        raise InputError(f"run {run.run_id}: its sources changed while they were read; import them again")
    return Imported(run=run, read=read, fresh=True)


def _survey(request: ImportRequest) -> Survey:
    """Read, count and hash all records without keeping them."""
    read, whole = Survey(), hashlib.sha256()
    several: set[str] = set()

    def bad(text: str) -> None:
        read.num_bad += 1
        if len(read.bad) < _SHOWN:
            log.warning("  bad record: error=%s", text)
            read.bad.append(text)

    for episode in _episodes(request, bad):
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
        log.warning("  tools with several definitions, using the first: tools=%s", ",".join(sorted(several)))
    if read.num_bad > len(read.bad):
        log.warning("  more bad records: count=%d", read.num_bad - len(read.bad))
    return read


def _episodes(request: ImportRequest, bad: Callable[[str], None] = lambda text: None) -> Iterator[Episode]:
    """Yield the trajectories as episodes, passing bad records to `bad`. Further ones of a task get the next seeds."""
    seeds: Counter[str] = Counter()
    for location, name, talk in _conversations(request, bad):
        try:
            task = talk.task_id or f"goal-{hashlib.sha256(talk.goal.encode('utf-8', 'replace')).hexdigest()[:12]}"
            talk = talk if request.model is None else replace(talk, model=request.model)
            episode = to_episode(
                talk, task_id=task, seed=seeds[task], benchmark=request.benchmark, format=name, source=_named(location)
            )
        except BadRecord as error:
            bad(f"{location}: {error}")
            continue
        seeds[task] += 1
        yield episode


def _conversations(request: ImportRequest, bad: Callable[[str], None]) -> Iterator[tuple[str, str, Conversation]]:
    """Yield (location, format, conversation), logged requests last, joined into sessions."""
    records = (record for source in request.sources for record in read_source(source, split=request.split))
    requests = []
    for location, record in islice(records, request.limit):
        try:
            name, talk = _conversation(record, request.format)
        except BadRecord as error:
            bad(f"{location}: {error}")
            continue
        if name == "litellm":
            requests.append((location, talk))
        else:
            yield location, name, talk
    yield from ((location, "litellm", talk) for location, talk in sessions_of(requests))


def _tools(episode: Episode) -> Iterator[RecordedTool]:
    return filter(None, map(tool_of_log, episode.metadata.extra.get("tools", [])))


def _named(location: str) -> str:
    """Return a location without folders, which are no part of the content."""
    return location.rpartition("/")[2]


def _conversation(record: Any, format: str) -> tuple[str, Conversation]:
    if isinstance(record, BadRecord):
        raise record
    name = recognise(record) if format == "auto" else format
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return name, FORMATS[name][1](record)
