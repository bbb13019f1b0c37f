"""Likely dollars of a stage: the bill of an earlier run here, scaled to the planned work.

    likely = likely_dollars(job("evaluate"), config, requests, at_list_price, count, root)
    print(likely.usd, likely.how)      # 5.31  as evaluate-3f2a... was billed ($0.54), times 9.8

A plan counts every request at the list price of an assumed prompt, which is an upper bound. The bill depends on the
length of pages, on caches, and on the share of equal requests, by nearly the same factor in two runs of a stage.
Without such a run the figure is a guess, and `how` has that word.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
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
"""Largest ratio of requests, either way, at which an earlier run is scaled."""


@dataclass(frozen=True, kw_only=True)
class Likely:
    """Dollars and their source."""

    usd: float
    how: str
    measured: bool = False
    """True if scaled from an earlier run of the stage; else a guess."""


@dataclass(frozen=True, kw_only=True)
class Billed:
    """A finished stage of this project that asked the teacher."""

    name: str
    """Name of its artifact: <job>-<fingerprint>."""
    config: Config
    usd: float
    models: dict[str, tuple[float, int]]
    """Model -> (dollars, answered requests)."""

    @property
    def job(self) -> str:
        """Job of the artifact."""
        return self.name.rpartition("-")[0]


def likely_dollars(
    row: Job,
    config: Config,
    requests: Mapping[str, float],
    at_list_price: float | None,
    count: Callable[[Config], float],
    root: Path,
) -> Likely | None:
    """Return the likely bill of a stage; None if it sends no request, or is unknown.

    requests: the plan's, by model; at_list_price: their dollars; count: configuration of an earlier run -> all the
    requests that a plan counts under it.
    """
    questions = sum(requests.values())
    if not questions or math.isnan(questions):
        return None
    before = [run for run in billed_here(root) if _asks_the_same(run.config, config)]
    ratios = [(questions / counted, run) for run in before if run.job == row.name and (counted := count(run.config))]
    near = [(ratio, run) for ratio, run in ratios if 1 / _FAR <= ratio <= _FAR]
    if near:
        ratio, run = min(near, key=lambda pair: abs(math.log(pair[0])))
        how = f"as {run.name} was billed (${run.usd:.4f}), times {ratio:.3g}"
        return Likely(usd=run.usd * ratio, how=how, measured=True)
    share = row.usual_share
    if priced_runs := [run for run in before if all(run.models.get(name, (0, 0))[1] for name in requests)]:
        each = {name: priced_runs[-1].models[name][0] / priced_runs[-1].models[name][1] for name in requests}
        prices = " and ".join(f"${usd:.5f} a question of {name}" for name, usd in each.items())
        return Likely(
            usd=share * sum(each[name] * count for name, count in requests.items()),
            how=f"a guess: {prices} as in {priced_runs[-1].name}, of {share:.0%} of the questions",
        )
    if at_list_price is None:
        return None
    return Likely(usd=at_list_price * share, how=f"a guess: {share:.0%} of the questions, at the list price")


def billed_here(root: Path) -> Iterator[Billed]:
    """Yield the finished stages of the project at `root` that were billed, with the totals of their journals."""
    ledger = ProjectLedger(root)
    paid: dict[str, dict[str, tuple[float, int]]] = {}
    for entry in ledger.entries():
        book, parts = ledger.book(entry), Path(entry.folder).parts
        owner = next((name for name, after in zip(parts, parts[1:], strict=False) if after in _JOURNALS), "")
        models, name = paid.setdefault(owner, {}), str(entry.scope.get("model"))
        usd, answered = models.get(name, (0.0, 0))
        models[name] = usd + book.usd, answered + book.answered
    for folder in sorted((root / ARTIFACTS).glob("*-*"), key=lambda path: path.stat().st_mtime):
        owners = {folder.name, *_runs(folder)} & paid.keys()
        if not owners or not (folder / ARTIFACT_MANIFEST).exists():
            continue
        try:
            config = load_recorded(folder / CONFIGURATION)
        except R2VError:
            continue  # its configuration is of another version of R2V
        together: dict[str, tuple[float, int]] = {}
        for name, (usd, answered) in ((name, totals) for owner in owners for name, totals in paid[owner].items()):
            before = together.get(name, (0.0, 0))
            together[name] = before[0] + usd, before[1] + answered
        yield Billed(name=folder.name, config=config, usd=sum(usd for usd, _ in together.values()), models=together)


def _runs(folder: Path) -> list[str]:
    """Return the runs that a collection's artifact names; none for another artifact."""
    try:
        return [str(json.loads(line)["run_id"]) for line in (folder / RUNS_FILE).read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _asks_the_same(earlier: Config, now: Config) -> bool:
    names = ("provider", "model_name", "base_url", "effort", "thinking", "actions")
    pairs = [(earlier.teacher, now.teacher)]
    if earlier.policy.is_api != now.policy.is_api:
        return False
    if earlier.policy.is_api:
        pairs.append((earlier.policy.as_endpoint(earlier.teacher), now.policy.as_endpoint(now.teacher)))
    same = all(getattr(a, name) == getattr(b, name) for a, b in pairs for name in names)
    return same and earlier.env.benchmark == now.env.benchmark
