"""Aims of the study over training seeds, with a verdict on each: met, missed, or open while seeds are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.headline_figures import MARGIN, Curves, lower_bound
from benchmarks.placing import POINTS
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import FloatArray, percentile_interval

LEAST_LEADS = {
    "noisy": {"disagreement": 0.04, "entropy": 0.1},
    "shift": {"disagreement": 0.04, "entropy": 0.1},
    "clean": {"disagreement": 0.0, "entropy": 0.1},
}
"""Least lead of r2v in APGR, by condition and baseline."""
OFF_ZERO = ("noisy", "shift")
"""Conditions under which the interval of the lead over disagreement has to exclude 0."""
LEVEL = 0.8
MOST_DOLLARS = {"noisy": {"entropy": 0.7, "disagreement": 0.85}}
"""Most dollars of r2v at success `LEVEL`, as a share of the baseline's."""


def aim_lines(
    leads: Mapping[str, FloatArray], curves: Curves, condition: str, sized: bool, complete: bool
) -> list[str]:
    """Return a line for each aim. `leads`: r2v's over each baseline, in the estimate and in every draw. `sized`: for
    the study on desk, which has aims on the size of leads; in any other, no baseline may be ahead significantly."""
    verdicts = [*(_sized(leads, curves, condition) if sized else ()), _no_baseline_ahead(leads)]
    names = {True: "met", False: "missed"}
    return ["Aims:", "", *(f"- {text} ({names[met] if complete else 'open'})" for text, met in verdicts), ""]


def _sized(leads: Mapping[str, FloatArray], curves: Curves, condition: str) -> Iterator[tuple[str, bool]]:
    for method, least in LEAST_LEADS[condition].items():
        if method in leads:
            interval, lead = percentile_interval(leads[method][1:]), leads[method][0]
            excludes = method != "disagreement" or condition not in OFF_ZERO
            text = f"APGR at least {least:+.2f} over {method}" + ("" if excludes else ", its interval above 0")
            yield f"{text}: {lead:+.3f}", bool(lead >= least) and (excludes or (interval or (0.0,))[0] > 0)
    for method, most in MOST_DOLLARS.get(condition, {}).items():
        if method in curves.cost:
            ratio = curves.dollars(OURS, LEVEL)[0] / curves.dollars(method, LEVEL)[0]
            yield f"dollars at success {LEVEL:.2f} at most {most:.2f} of {method}'s: {ratio:.2f}", bool(ratio <= most)
    behind = [f"{method} at {point}" for method in curves.cost if method != OURS for point in _behind(curves, method)]
    text = f"non-inferior by {MARGIN:g} to every baseline at each of the {len(POINTS)} points"
    yield text + (f": not shown for {', '.join(behind)}" if behind else ""), not behind


def _behind(curves: Curves, method: str) -> Sequence[str]:
    drawn = curves.differences(method)
    return [point for point, draws in zip(POINTS, drawn, strict=True) if lower_bound(draws[1:]) <= -MARGIN]


def _no_baseline_ahead(leads: Mapping[str, FloatArray]) -> tuple[str, bool]:
    intervals = {method: percentile_interval(draws[1:]) for method, draws in leads.items()}
    ahead = [method for method, interval in intervals.items() if interval is not None and interval[1] < 0]
    return "no baseline ahead by a shown difference" + (f": {', '.join(ahead)}" if ahead else ""), not ahead
