"""Comparison of an experiment's settings: means with intervals, paired tests and the best, as a table and files.

A setting is a point without its seed. Its interval is Student's over two or more seeds; for one seed the bootstrap over
the units of `outcomes.csv` (tasks), or none without that file. Each setting is tested against the reference in pairs:
by shared units, averaged over seeds, or else by shared seeds. The reference is the best setting unless one is named, so
it is chosen by the same data: p is corrected by Holm for the number of settings, not for the choice of the reference.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from r2v.config.yaml_text import plain, read_file
from r2v.console import text_table
from r2v.errors import EmptyResult, UsageError, nearest
from r2v.evaluation.tables.files import escape
from r2v.experiments.metrics import leaves, metrics_of, outcomes_of
from r2v.experiments.records import ExperimentRecord, RunRecord, read_record
from r2v.experiments.schedule.asha import point_of
from r2v.experiments.specification.expansion import label_of, shown_value
from r2v.plotting import LINE, PALETTE, panels, save
from r2v.storage.files import write_text

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """Result of one setting: its figure by seed, their mean with its interval, and the test against the reference."""

    label: str
    values: dict[str, Any]
    runs: tuple[str, ...]
    by_seed: dict[int | None, float]
    mean: float
    interval: tuple[float, float] | None
    over: str
    """Unit of the interval: seeds, units, or "" without an interval."""
    difference: float | None = None
    """Mean paired difference from the reference; None without pairs."""
    pairs: int = 0
    p_value: float | None = None
    """Corrected by Holm."""


@dataclass(frozen=True, kw_only=True)
class ExperimentComparison:
    """Results of all settings, the best first."""

    name: str
    metric: str
    goal: str
    reference: str
    settings: tuple[SettingResult, ...]
    left_out: tuple[str, ...]
    """Runs without the figure: pending, failed, or stopped early."""


def compare(folder: Path, metric: str | None = None, reference: str | None = None) -> ExperimentComparison:
    """Compare the settings of an experiment by a metric (default: the specification's, or else the first). Raise
    UsageError for a missing metric or reference, EmptyResult if no run is completed."""
    record = read_record(folder)
    done, left_out = _final(record)
    if not done:
        raise EmptyResult(f"{folder}: no run is completed; r2v experiments status shows why")
    metric = _metric(record, done, metric)
    groups: dict[str, list[RunRecord]] = {}
    for run in done:
        if metric in metrics_of(Path(run.run_dir)):
            groups.setdefault(_label(run, groups), []).append(run)
        else:
            left_out.append(run.run)
    sign = -1 if record.goal == "max" else 1
    settings = sorted(
        (_setting(label, runs, metric) for label, runs in groups.items()), key=lambda setting: sign * setting.mean
    )
    first = _reference(settings, reference)
    return ExperimentComparison(
        name=record.name,
        metric=metric,
        goal=record.goal,
        reference=first.label,
        settings=tuple(_tested(settings, first, groups)),
        left_out=tuple(left_out),
    )


def _label(run: RunRecord, groups: Mapping[str, Sequence[RunRecord]]) -> str:
    """Return the setting of a run. A second run of a point, by another program, is a setting of its own."""
    label = label_of(run.values) or run.base
    again = any(other.seed == run.seed and other.identity != run.identity for other in groups.get(label, ()))
    return f"{label} ({run.run})" if again else label


def comparison_lines(comparison: ExperimentComparison) -> list[str]:
    """Return the comparison as the lines of a table."""
    rows = [("setting", "runs", comparison.metric, "95 % interval", "over", "difference", "pairs", "p (Holm)")]
    for setting in comparison.settings:
        rows.append(
            (
                setting.label,
                str(len(setting.runs)),
                f"{setting.mean:.4f}",
                "" if setting.interval is None else f"[{setting.interval[0]:.4f}, {setting.interval[1]:.4f}]",
                setting.over,
                "" if setting.difference is None else f"{setting.difference:+.4f}",
                str(setting.pairs or ""),
                "" if setting.p_value is None else f"{setting.p_value:.4f}",
            )
        )
    best = comparison.settings[0]
    return [
        *text_table(rows, right=(1, 2, 5, 6, 7)).splitlines(),
        f"best: {best.label} ({', '.join(best.runs)}); differences are from {comparison.reference}",
        *([f"left out, without {comparison.metric}: {', '.join(comparison.left_out)}"] if comparison.left_out else []),
    ]


def write_comparison(folder: Path, comparison: ExperimentComparison) -> list[Path]:
    """Write the comparison as CSV, LaTeX and a plot; return the paths."""
    paths = [folder / f"comparison.{ending}" for ending in ("csv", "tex", "png")]
    write_text(paths[0], _csv(comparison))
    write_text(paths[1], _latex(comparison))
    _plot(paths[2], comparison)
    return paths


def _final(record: ExperimentRecord) -> tuple[list[RunRecord], list[str]]:
    """Return the completed runs to compare, with early stopping those of the highest rung, and the names of the
    others."""
    done = [run for run in record.runs if run.status == "completed"]
    if any(run.rung is not None for run in record.runs):
        top = max((run.rung or 0 for run in done), default=0)
        points = [point_of(run) for run in record.runs if run.rung == 0]
        last = [run for run in done if run.rung == top]
        return last, [point for point in points if point not in {point_of(run) for run in last}]
    return done, [run.run for run in record.runs if run.status != "completed"]


def _metric(record: ExperimentRecord, done: Sequence[RunRecord], requested: str | None) -> str:
    names = list(dict.fromkeys(name for run in done for name in metrics_of(Path(run.run_dir))))
    chosen = requested or record.metric or (names[0] if names else None)
    if chosen is None:
        raise EmptyResult(f"{record.name}: the runs left no metrics.json, so there is nothing to compare")
    if chosen not in names:
        raise UsageError(f"--metric {chosen}: no run has it; {nearest(chosen, names)}")
    return chosen


def _setting(label: str, runs: Sequence[RunRecord], metric: str) -> SettingResult:
    by_seed = {run.seed: metrics_of(Path(run.run_dir))[metric] for run in runs}
    figures = list(by_seed.values())
    interval, over = _interval(figures, runs)
    return SettingResult(
        label=label,
        values=runs[0].values,
        runs=tuple(run.run for run in runs),
        by_seed=by_seed,
        mean=fmean(figures),
        interval=interval,
        over=over,
    )


def _interval(figures: Sequence[float], runs: Sequence[RunRecord]) -> tuple[tuple[float, float] | None, str]:
    from scipy.stats import t

    from r2v.evaluation.measures.statistics import cluster_bootstrap_ci

    if len(figures) > 1:
        half = float(t.ppf(0.5 + LEVEL / 2, len(figures) - 1)) * stdev(figures) / math.sqrt(len(figures))
        return (fmean(figures) - half, fmean(figures) + half), "seeds"
    units = list(outcomes_of(Path(runs[0].run_dir)).values())
    if len(units) > 1 and math.isclose(fmean(units), figures[0], abs_tol=1e-6):
        return cluster_bootstrap_ci(units, LEVEL), "units"
    return None, ""


def _reference(settings: Sequence[SettingResult], requested: str | None) -> SettingResult:
    if requested is None:
        return settings[0]
    for setting in settings:
        if requested in (setting.label, *setting.runs):
            return setting
    names = [name for setting in settings for name in (setting.label, *setting.runs)]
    raise UsageError(f"--reference {requested}: no such setting or run; {nearest(requested, names)}")


def _tested(
    settings: Sequence[SettingResult], first: SettingResult, groups: Mapping[str, Sequence[RunRecord]]
) -> list[SettingResult]:
    from r2v.evaluation.measures.statistics import holm, paired_difference

    tests = {}
    for setting in settings:
        pairs = _pairs(setting, first, groups) if setting is not first else []
        if len(pairs) > 1:
            tests[setting.label] = paired_difference([a for a, _ in pairs], [b for _, b in pairs], LEVEL)
    corrected = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True)) if tests else {}
    return [
        replace(
            setting,
            difference=tests[setting.label].difference,
            pairs=tests[setting.label].num_tasks,
            p_value=corrected[setting.label],
        )
        if setting.label in tests
        else setting
        for setting in settings
    ]


def _pairs(
    setting: SettingResult, first: SettingResult, groups: Mapping[str, Sequence[RunRecord]]
) -> list[tuple[float, float]]:
    """Return pairs of figures: of shared units, averaged over seeds, or else of shared seeds."""
    ours, theirs = _units(groups[setting.label]), _units(groups[first.label])
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) > 1:
        return [(ours[unit], theirs[unit]) for unit in shared]
    seeds = [seed for seed in setting.by_seed if seed in first.by_seed]
    return [(setting.by_seed[seed], first.by_seed[seed]) for seed in seeds]


def _units(runs: Sequence[RunRecord]) -> dict[str, float]:
    by_unit: dict[str, list[float]] = {}
    for run in runs:
        for unit, value in outcomes_of(Path(run.run_dir)).items():
            by_unit.setdefault(unit, []).append(value)
    return {unit: fmean(values) for unit, values in by_unit.items() if len(values) == len(runs)}


def _csv(comparison: ExperimentComparison) -> str:
    keys = list(dict.fromkeys(key for setting in comparison.settings for key in setting.values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", *keys, "runs", "mean", "low", "high", "over", "difference", "pairs", "p_holm"])
    for row in comparison.settings:
        values = [*(row.values.get(key, "") for key in keys), " ".join(row.runs), row.mean, *(row.interval or ("", ""))]
        tested = ("" if figure is None else figure for figure in (row.difference, row.pairs, row.p_value))
        writer.writerow([row.label, *values, row.over, *tested])
    return text.getvalue()


def _latex(comparison: ExperimentComparison) -> str:
    lines = [r"\begin{tabular}{lrr}", r"\toprule", rf"setting & {escape(comparison.metric)} & $p$ \\", r"\midrule"]
    for row in comparison.settings:
        half = "" if row.interval is None else rf" {{\small [{row.interval[0]:.3f}, {row.interval[1]:.3f}]}}"
        p = "" if row.p_value is None else f"{row.p_value:.3f}"
        lines.append(rf"{escape(row.label)} & {row.mean:.3f}{half} & {p} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _plot(path: Path, comparison: ExperimentComparison) -> None:
    """Plot means with intervals, the best on top."""
    axes = panels([""], width=7, height=0.9 + 0.32 * len(comparison.settings))[0]
    for row, setting in enumerate(reversed(comparison.settings)):
        mean, (low, high) = setting.mean, setting.interval or (setting.mean, setting.mean)
        axes.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="o", color=PALETTE[0], capsize=3)
    axes.set_yticks(range(len(comparison.settings)), [setting.label for setting in reversed(comparison.settings)])
    axes.set_xlabel(f"{comparison.metric} (95 % interval)")
    axes.grid(axis="x", color=LINE)
    save(axes.figure, path.with_suffix(""), "png")


def difference_lines(folder: Path, first: str, second: str) -> list[str]:
    """Return the configuration keys and figures in which two runs differ, one line each. Raise UsageError for a missing
    run, InputError for a missing configuration."""
    record = read_record(folder)
    runs = [record.run(first), record.run(second)]
    configs = [dict(leaves(plain(read_file(Path(run.config_path)).value))) for run in runs]
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
