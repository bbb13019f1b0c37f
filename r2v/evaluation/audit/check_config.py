"""config.yaml of a results folder, held to the way R2V writes it: each value in its own type, nothing left to convert.

A reader of configurations is lenient where a person types: "yes" is true, "3" is a number. What R2V writes beside an
artifact is resolved, so there each value stands as it is. A key that is left out has its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from r2v.config import load_recorded, to_yaml
from r2v.config.sources import YAMLFile
from r2v.config.yaml_text import plain, read


def config_problems(path: Path) -> tuple[str, ...]:
    """Return the values that R2V would have written otherwise, of a file that `settings_of` has read."""
    return _problems(YAMLFile.read(path))


@lru_cache(maxsize=8)
def _problems(file: YAMLFile) -> tuple[str, ...]:
    given, written = (plain(read(text, file.path).value) for text in (file.text, to_yaml(load_recorded(file.path))))
    return tuple(_otherwise(given, written, ""))


def _otherwise(given: Any, written: Any, stem: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(written, dict):
        for name in given.keys() & written.keys():
            yield from _otherwise(given[name], written[name], f"{stem}.{name}")
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for index, (ours, theirs) in enumerate(zip(given, written, strict=True)):
            yield from _otherwise(ours, theirs, f"{stem}[{index}]")
    elif given != written or type(given) is not type(written):
        yield f"{stem.lstrip('.')} is {given!r:.60}, R2V writes {written!r:.60}"
