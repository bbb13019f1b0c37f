"""Differences between two runs: what their configurations and their figures do not share.

print("\\n".join(difference_lines(Path("outputs/experiments/..."), "run_003", "run_007")))
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import plain, read_file
from r2v.console import text_table
from r2v.experiments.expansion import shown_value
from r2v.experiments.metrics import metrics_of
from r2v.experiments.records import read_record


def difference_lines(folder: Path, first: str, second: str) -> list[str]:
    """The keys and the figures in which two runs of an experiment differ, a line each. Raises UsageError for a run
    that is not there, InputError for a configuration that is gone."""
    record = read_record(folder)
    runs = [record.run(first), record.run(second)]
    configs = [dict(_leaves(plain(read_file(Path(run.config_path)).value))) for run in runs]
    figures = [metrics_of(Path(run.run_dir)) for run in runs]
    rows = [("", first, second)]
    rows += [(key, shown_value(a), shown_value(b)) for key, a, b in _differing(*configs)]
    if len(rows) == 1:
        rows.append(("the configurations are the same", "", ""))
    for key, a, b in _differing(*figures):
        shown = [f"{value:.4g}" if isinstance(value, float) else "none" for value in (a, b)]
        rows.append((key, shown[0], shown[1]))
    return text_table(rows).splitlines()


def _differing(first: dict[str, Any], second: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys((*first, *second)):
        a, b = first.get(key, "none"), second.get(key, "none")
        if a != b or isinstance(a, bool) != isinstance(b, bool):
            yield key, a, b


def _leaves(value: dict[str, Any], stem: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _leaves(item, f"{stem}{key}.")
        else:
            yield f"{stem}{key}", item
