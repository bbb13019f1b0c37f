"""Likely dollars of a stage: what an earlier run of it here was billed, scaled to what is planned now.

    found = likely_dollars(job("evaluate"), config, questions, at_list_price, count, root)
    print(found.usd, found.how)        # 5.31  as evaluate-3f2a... was billed ($0.54), times 9.8

A plan counts every question at the list price of a prompt that nobody has seen: a bound, and no more. What is billed
depends on the length of pages, on caches, and on how many questions are equal, by nearly the same factor in two runs of
one stage. Without such a run the figure is a guess, and says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from r2v.config import Config, load_recorded
from r2v.errors import R2VError
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.pipeline.inputs import RUNS_FILE
from r2v.pipeline.rows import Job
from r2v.storage.artifact import JOURNAL
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.integrity import CONFIGURATION
from r2v.storage.paths import ARTIFACTS

_JOURNALS = (JOURNAL, "provider")
"""Folders of journals, in an artifact and in a run."""
_FAR = 1000.0
"""A run whose questions are so many times fewer or more says nothing."""


@dataclass(frozen=True, kw_only=True)
class Likely:
    """Dollars, and what they go by."""

    usd: float
    how: str
    measured: bool = False
    """True if an earlier run of the stage says so; else it is a guess."""


@dataclass(frozen=True, kw_only=True)
class Billed:
    """A finished stage of this project that asked the teacher."""

    name: str
    """Of its artifact: <job>-<fingerprint>."""
    config: Config
    usd: float
    answered: int

    @property
    def job(self) -> str:
        """Whose artifact it is."""
        return self.name.rpartition("-")[0]


def likely_dollars(
    row: Job,
    config: Config,
    questions: float,
    at_list_price: float | None,
    count: Callable[[Config], float],
    root: Path,
) -> Likely | None:
    """The likely bill of a stage; None where nothing is asked, or nobody can tell. questions, at_list_price:
    of the plan. count: the questions that the plan would have counted under an earlier run's configuration."""
    if not config.asks_provider or not questions or math.isnan(questions):
        return None
    before = [run for run in billed_here(root) if _asks_the_same(run.config, config)]
    ratios = [(questions / asked, run) for run in before if run.job == row.name and (asked := count(run.config))]
    near = [(ratio, run) for ratio, run in ratios if 1 / _FAR <= ratio <= _FAR]
    if near:
        ratio, run = min(near, key=lambda one: abs(math.log(one[0])))
        how = f"as {run.name} was billed (${run.usd:.4f}), times {ratio:.3g}"
        return Likely(usd=run.usd * ratio, how=how, measured=True)
    share = row.usual_share
    if asked_before := [run for run in before if run.answered]:
        run = asked_before[-1]
        each = run.usd / run.answered
        return Likely(
            usd=each * questions * share,
            how=f"a guess: ${each:.5f} a question as in {run.name}, of {share:.0%} of the questions",
        )
    if at_list_price is None:
        return None
    return Likely(usd=at_list_price * share, how=f"a guess: {share:.0%} of the questions, at the list price")


def billed_here(root: Path) -> Iterator[Billed]:
    """The finished stages of the project at `root` that were billed, with what their journals came to."""
    ledger = ProjectLedger(root)
    usd: dict[str, float] = {}
    answered: dict[str, int] = {}
    for entry in ledger.entries():
        book, parts = ledger.book(entry), Path(entry.folder).parts
        owner = next((name for name, after in zip(parts, parts[1:], strict=False) if after in _JOURNALS), "")
        usd[owner], answered[owner] = usd.get(owner, 0.0) + book.usd, answered.get(owner, 0) + book.answered
    for folder in sorted((root / ARTIFACTS).glob("*-*"), key=lambda one: one.stat().st_mtime):
        owners = {folder.name, *_runs(folder)} & usd.keys()
        if not owners or not (folder / ARTIFACT_MANIFEST).exists():
            continue
        try:
            config = load_recorded(folder / CONFIGURATION)
        except R2VError:
            continue  # of another version
        yield Billed(
            name=folder.name,
            config=config,
            usd=sum(usd[owner] for owner in owners),
            answered=sum(answered[owner] for owner in owners),
        )


def _runs(folder: Path) -> list[str]:
    """The runs that a collection's artifact names; none of another."""
    try:
        return [str(json.loads(line)["run_id"]) for line in (folder / RUNS_FILE).read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _asks_the_same(one: Config, other: Config) -> bool:
    names = ("provider", "model_name", "base_url", "effort", "thinking", "actions")
    pairs = [(one.teacher, other.teacher)]
    if one.policy.is_api != other.policy.is_api:
        return False
    if one.policy.is_api:
        pairs.append((one.policy.as_endpoint(one.teacher), other.policy.as_endpoint(other.teacher)))
    same = all(getattr(a, name) == getattr(b, name) for a, b in pairs for name in names)
    return same and one.env.benchmark == other.env.benchmark
