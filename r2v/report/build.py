"""Report: a results folder as one static page that can be copied and opened anywhere.

    build_report(Path("results/mrp"))     # results/report/mrp/index.html

    index.html        claims, tables, figures, every episode, where every number comes from
    llm_summary.json  every result in 20 kB, for a model that writes it up; results.md, the same as a page
    data/*.csv        the numbers of each figure
    data/*.js         the episodes, packed
    figures/*         with `figures`: each panel of each figure for a column of a paper, as PDF and as SVG

A report is a function of the results: made again it has the same bytes with the same matplotlib, so one that is up to
date is not drawn again. It executes nothing, so a stranger's folder can be shown: its head names the folder's audit,
or the command for it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from r2v.constraints import shown as in_one_line
from r2v.errors import InputError, R2VError
from r2v.evaluation.tables.summary import ABLATIONS_FILE, llm_summary, results_page
from r2v.log import logger
from r2v.plotting import save, svg_text
from r2v.report.figures import PAGE as FOR_PAGE
from r2v.report.figures import PAPER, draw
from r2v.report.marker import REPORT_MARKER, fingerprint_of, is_current, read_marker, write_marker
from r2v.report.page import page
from r2v.report.series import Series, series
from r2v.report.sources import Sources, read_sources
from r2v.report.story import story
from r2v.report.viewer_data import write_episodes
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.removal import OWN, NotOurs, is_own, make_own, remove_own, require_own

PAGE, SUMMARY, RESULTS = "index.html", "llm_summary.json", "results.md"
_PATIENCE = 600.0
"""Seconds that a report waits for another one of the same folder."""


def build_report(
    results: Path,
    output: Path | None = None,
    ablations: Path | None = None,
    *,
    figures: bool = False,
    verified: Mapping[Path, str] | None = None,
    force: bool = False,
) -> Path:
    """Write the report of a results folder unless it is up to date, and return its page. `output` is
    `results/report/mrp` for `results/mrp` where None; an earlier report there is replaced, and concurrent ones wait for
    each other. `figures`: write panels for a paper too. `verified`: as for `read_sources`. `force`: write it although
    it is up to date. Raises InputError where there are no finished results, where they hold values that no evaluation
    writes, or `output` holds files that R2V did not write."""
    folder = output or results.absolute().parent / "report" / results.absolute().name
    if folder.resolve().is_relative_to(results.resolve()):
        raise InputError(
            f"{folder}: lies in {results}, which would fail its audit; name a folder beside it by --output"
        )
    _require_replaceable(folder)
    with _malformed_in_one_line(results):
        sources = read_sources(results, ablations, verified)
        fingerprint = fingerprint_of(results, sources, figures=figures)
    with lease(folder.with_name(f".{folder.name}.lease"), wait=_PATIENCE):
        draft, before = folder.with_name(f".{folder.name}.draft"), folder.with_name(f".{folder.name}.before")
        if os.path.lexists(before):  # a kill may have left the only report there, so it is removed last
            make_own(before, REPORT_MARKER)
        if not force and is_current(folder, fingerprint):
            logger.info("report           up to date")
            for left in (draft, before):
                remove_own(left, REPORT_MARKER)
            return folder / PAGE
        make_own(draft, REPORT_MARKER, anew=True)
        with _malformed_in_one_line(results):
            try:
                _fill(draft, results, sources, figures)
            except Exception:
                remove_own(draft, REPORT_MARKER)
                raise
        write_marker(draft, fingerprint)
        _require_replaceable(folder)
        _exchange(draft, folder, before)
    return folder / PAGE


def _fill(draft: Path, results: Path, sources: Sources, figures: bool) -> None:
    drawn = {name: (data, write_figure(name, data, draft, for_paper=figures)) for name, data in series(sources).items()}
    opening = story(sources.bundle)
    index = write_episodes(results, sources.setup, draft, condition=opening.condition)
    shown = (sources.bundle, sources.tables.get(ABLATIONS_FILE, []), sources.missing, sources.audit)
    write_text(draft / SUMMARY, llm_summary(*shown))
    write_text(draft / RESULTS, results_page(*shown))
    write_text(draft / PAGE, page(sources, opening, drawn, index))


@contextmanager
def _malformed_in_one_line(results: Path) -> Iterator[None]:
    """Raise InputError for any error that the values of a folder cause: they may be a stranger's, and any function may
    fail on them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fonts without a sign, axes without a width
            yield
    except (R2VError, OSError):
        raise
    except Exception as error:
        raise InputError(
            f"{results}: holds values that no evaluation writes ({type(error).__name__}: {in_one_line(error)}); "
            f"`r2v verify-results {results}` names them"
        ) from error


def _exchange(draft: Path, folder: Path, before: Path) -> None:
    """Replace the folder by the draft. A kill between the two renames leaves the earlier report whole, as `before`, and
    the next one continues from there."""
    if is_own(folder, REPORT_MARKER):
        remove_own(before, REPORT_MARKER)
        folder.rename(before)
    draft.rename(folder)  # also over an empty folder
    remove_own(before, REPORT_MARKER)


def _require_replaceable(folder: Path) -> None:
    """Raise InputError unless `folder` is missing, empty, or a report and nothing else."""
    if not os.path.lexists(folder) or (not folder.is_symlink() and folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        require_own(folder, REPORT_MARKER)
    except NotOurs as error:
        raise InputError(f"{error}; or name an empty or a new folder by --output") from None
    _, listed = read_marker(folder)
    if strays := [name for name in _files(folder) if name not in listed]:
        raise InputError(
            f"{folder}: holds {strays[0]}, which no report wrote; move it away, or name an empty or a new folder by "
            "--output"
        )


def _files(folder: Path) -> Iterator[str]:
    """Yield the names of all files and links below a folder, except its marker."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name != OWN and (path.is_symlink() or not path.is_dir()):
            yield name


def write_figure(name: str, data: Series, folder: Path, *, for_paper: bool) -> dict[str, str]:
    """Write the CSV file of a figure and, for a paper, its panels; return the page's SVG of each panel by its title."""
    import matplotlib

    write_text(folder / "data" / f"{name}.csv", data.csv())
    if for_paper:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(PAPER.style):
            for title, figure in draw(name, data, PAPER).items():
                path = folder / "figures" / re.sub(r"\W+", "_", f"{name}_{title}").rstrip("_")
                save(figure, path, "pdf")
                figure.set_layout_engine("none")  # both formats have one layout: a second one would move it a little
                save(figure, path, "svg")
    with matplotlib.rc_context(FOR_PAGE.style):
        return {title: svg_text(figure) for title, figure in draw(name, data, FOR_PAGE).items()}
