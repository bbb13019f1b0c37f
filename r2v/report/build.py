"""Report: a results folder as one static page that can be copied and opened anywhere.

    build_report(Path("results/mrp"))     # results/report/mrp/index.html

    index.html        claims, tables, figures, every episode, where every number comes from
    llm_summary.json  every result in 20 kB, for a model that writes it up; results.md, the same as a page
    data/*.csv        the numbers of each figure
    data/*.js         the episodes, packed
    figures/*.pdf     each figure for a paper, and as SVG

A report is a function of the results: made again it has the same bytes with the same matplotlib. It executes nothing,
so a stranger's folder may be looked at; what it trusts is the hashes that the folder lists of itself, and
`r2v verify-results` is what replays it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from r2v.errors import InputError
from r2v.evaluation.tables.summary import ABLATIONS_FILE, llm_summary, results_page
from r2v.plotting import STYLE, save
from r2v.report.figures import draw
from r2v.report.page import page
from r2v.report.series import Series, series
from r2v.report.sources import read_sources
from r2v.report.viewer_data import COPYABLE, ViewerLimits, write_episodes
from r2v.storage.files import write_text
from r2v.storage.lease import lease

PAGE, SUMMARY, RESULTS = "index.html", "llm_summary.json", "results.md"
_OURS = (PAGE, SUMMARY, RESULTS, "data", "figures")
_PATIENCE = 600.0
"""Seconds that a report waits for another one at the same place."""


def build_report(
    results: Path, output: Path | None = None, ablations: Path | None = None, limits: ViewerLimits = COPYABLE
) -> Path:
    """Write the report of a results folder and return its page. `output` is `results/report/mrp` for
    `results/mrp` where None; what an earlier report left there is replaced, and two makers wait for each other.
    Raises InputError where there are no finished results, or `output` holds something else."""
    folder = output or results.absolute().parent / "report" / results.absolute().name
    _require_ours(folder)
    sources = read_sources(results, ablations)
    with lease(folder.with_name(f".{folder.name}.lease"), wait=_PATIENCE):
        draft, before = folder.with_name(f".{folder.name}.draft"), folder.with_name(f".{folder.name}.before")
        shutil.rmtree(draft, ignore_errors=True)
        drawn = {name: (one, _drawn(name, one, draft)) for name, one in series(sources).items()}
        ablations_of = sources.tables.get(ABLATIONS_FILE, [])
        index = write_episodes(results, sources.setup, draft, limits)
        write_text(draft / SUMMARY, llm_summary(sources.bundle, ablations_of, sources.missing))
        write_text(draft / RESULTS, results_page(sources.bundle, ablations_of, sources.missing))
        write_text(draft / PAGE, page(sources, drawn, index))
        _exchange(draft, folder, before)
    return folder / PAGE


def _exchange(draft: Path, folder: Path, before: Path) -> None:
    """Put the draft in the folder's place. Killed between the two renames it leaves the earlier report as `before`,
    whole, and the next one goes on from there."""
    if folder.exists():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    draft.rename(folder)
    shutil.rmtree(before, ignore_errors=True)


def _require_ours(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= set(_OURS)):
        raise InputError(f"{folder}: holds something else than a report; name an empty or a new folder by --output")


def _drawn(name: str, data: Series, folder: Path) -> str:
    """The SVG of a figure, written with its PDF and its CSV."""
    import matplotlib

    write_text(folder / "data" / f"{name}.csv", data.csv())
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        # Drawn anew for each format: saving a figure moves its layout a little, and bytes must not depend on that.
        save(draw(name, data), folder / "figures" / name, "pdf")
        return save(draw(name, data), folder / "figures" / name, "svg").read_text()
