"""Tables that can be checked: build them again from the stored episodes and compare bytes.

This is the half of `r2v verify-results` that needs no environment; the other half replays the episodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from r2v.data.episode import Episode
from r2v.data.store import TrajectoryStore
from r2v.errors import InputError
from r2v.evaluation.setup import MAIN, OPERATING_POINT, Setup, read_setup
from r2v.evaluation.tables import build_tables
from r2v.utils.results import render, with_manifest

EPISODES = "episodes"
STRUCTURED = "structured_results"


def episodes_path(results: Path, condition: str, method: str, point: str = MAIN) -> Path:
    """Where a method's episodes under a condition lie; `point` names an operating point of its frontier."""
    folder = results / EPISODES / condition
    return folder / f"{method}.jsonl" if point == MAIN else folder / "frontier" / f"{method}@{point}.jsonl"


def planned_files(results: Path, setup: Setup) -> Iterator[tuple[Path, str, str, str]]:
    """(path, condition, method, point) of every episodes file that the setup plans, in table order."""
    for cell in setup.cells():
        yield episodes_path(results, *cell), *cell


def stored_episodes(results: Path, setup: Setup) -> Iterator[Episode]:
    """Every episode of an evaluation. Raises InputError for a missing file, a bad line, or an episode that
    says it is another method's, condition's or point's than its file."""
    for path, *cell in planned_files(results, setup):
        for episode in TrajectoryStore(path).iter_episodes():
            told = [episode.condition, episode.method, episode.extra.get(OPERATING_POINT, MAIN)]
            if told != cell:
                raise InputError(f"{path}: episode {episode.episode_id} says {'/'.join(told)}, its file says "
                                 f"{'/'.join(cell)}")
            yield episode


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What rebuilding found. `differing` names files that are missing, changed, or not of this evaluation."""

    results: Path
    num_files: int
    differing: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether every table is byte for byte what its episodes say."""
        return not self.differing


def rebuild(results: Path) -> dict[str, str]:
    """The text of every file of structured_results/, from the stored episodes and setup alone."""
    setup = read_setup(results)
    return with_manifest(render(build_tables(stored_episodes(results, setup), setup).bundle()))


def verify_tables(results: Path) -> VerifyReport:
    """Compare every stored table with what the episodes give."""
    texts = rebuild(results)
    folder = results / STRUCTURED
    stored = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    differing = [name for name, text in texts.items() if not _same(folder / name, text)]
    return VerifyReport(results=results, num_files=len(texts),
                        differing=(*differing, *sorted(stored - texts.keys())))


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
