"""The page is text wherever somebody else wrote, reads nothing from a network, and works in a real browser."""

from __future__ import annotations

import csv
import html
import importlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from r2v.config.methods import ROUTERS
from r2v.data.episode import Episode, Observation, to_line
from r2v.data.store import TrajectoryStore
from r2v.envs.browser.chromium import chromium_flags, find_chromium
from r2v.evaluation.claims import headline
from r2v.evaluation.figure_text import p_text
from r2v.evaluation.setup import episodes_path
from r2v.report.build import build_report
from r2v.report.console import closing_lines
from r2v.report.elements import tag
from r2v.report.page import robustness
from r2v.report.sources import read_sources
from tests.envs.browser import real_browser

HOSTILE = "</script><script>document.title='injected'</script><img src=x onerror=\"document.title='injected'\">"
"""What an injected instruction may hold; nothing may come of it."""


def hostile(episode: Episode) -> Episode:
    """An episode whose world, model and task all write markup."""
    step = episode.steps[0]
    action = replace(step.action, raw_text=HOSTILE)
    first = replace(step, observation=Observation(raw_text=HOSTILE), action=action)
    told = replace(episode.metadata, goal=HOSTILE, task_id=f"{episode.metadata.task_id}{HOSTILE}")
    return replace(episode, metadata=told, steps=(first, *episode.steps[1:]))


@pytest.fixture(scope="module")
def hostile_report(micro_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report of episodes that attack it."""
    results = tmp_path_factory.mktemp("hostile") / "results" / "mine"
    shutil.copytree(micro_results, results)
    for path in (results / "episodes").rglob("r2v.jsonl.zst"):
        lines = [to_line(hostile(episode)) for episode in TrajectoryStore(path).iter_episodes()]
        path.unlink()
        path.with_suffix("").write_text("".join(f"{line}\n" for line in lines))
    assert episodes_path(results, "noisy", "r2v").suffix == ".jsonl"
    return build_report(results)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A Chromium, in which each test opens what it opens by itself."""
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(find_chromium()), args=chromium_flags())
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, page: Path, **options: Any) -> Iterator[Any]:
    """The page, and nothing but it: no request leaves the folder, no error is on the console."""
    said: list[str] = []
    context = chromium.new_context(**options)
    try:
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: said.extend([request.url] * (not request.url.startswith("file:"))))
        tab.goto(page.as_uri())
        yield tab
    finally:
        context.close()
    assert said == []


def test_what_others_wrote_is_text(hostile_report: Path) -> None:
    page = hostile_report.read_text()
    assert "<script>document" not in page and "<img" not in page and "\\u003cscript>document" in page
    assert "http-equiv" in page and "default-src 'none'" in page
    for address in ("http://", "https://", "//cdn"):
        assert not any(f'{name}="{address}' in page for name in ("src", "href"))


def test_an_element_holds_its_children_in_their_order() -> None:
    whole = tag("p", "one ", tag("b", "two"), " three", None, tag("i", "four"), class_="x")
    assert [whole.text, whole[0].tail, whole[1].text, whole.get("class")] == ["one ", " three", "four", "x"]


def rows_after(page: Path, start: str) -> list[list[str]]:
    """The cells of the first table behind this text, row by row."""
    text = page.read_text()
    table = text[text.index("<table", text.index(start)) :]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", table[: table.index("</table>")])
    return [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?>.*?</t[hd]>", row)] for row in rows
    ]


def table(results: Path, name: str) -> list[dict[str, str]]:
    with (results / "structured_results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_comparison_is_on_the_page_with_its_interval_p_and_detectable_difference(
    micro_results: Path, micro_report: Path
) -> None:
    head, *shown = rows_after(micro_report / "index.html", 'id="comparisons"')
    rows = table(micro_results, "comparisons.csv")
    assert head == ["condition", "r2v less", "success", "Holm's p", "shows from"], "nothing was solved: no APGR"
    by_pair = {(line[0], line[1]): line[2:] for line in shown}
    assert {(row["condition"], row["method_b"]) for row in rows} == set(by_pair)
    for row in rows:
        if row["metric"] == "success_rate" and row["method_b"] in ROUTERS:
            continue  # at unequal dollars: in the file alone
        difference, p, least = by_pair[row["condition"], row["method_b"]]
        numbers = [float(number) for number in re.findall(r"[-+]\d?\.\d+", difference)]
        figures = [float(row[name]) for name in ("difference", "ci_lower", "ci_upper")]
        assert numbers == pytest.approx(figures, abs=5.1e-4)
        assert p == p_text(float(row["p_holm"]) if row["p_holm"] else None)
        assert (least == "") == (row["min_detectable_difference"] == "")


def test_the_headline_is_the_first_line_of_page_and_last_print(micro_results: Path, micro_report: Path) -> None:
    lines = headline(read_sources(micro_results).bundle)
    page = html.unescape((micro_report / "index.html").read_text())
    assert lines and lines[0].startswith("noisy, shift: the small policy solved none of 4 tasks")
    assert page.index("</h1>") < page.index(f">{lines[0]}<") < page.index("executed episodes: tasks")
    assert closing_lines(micro_results, (), None).splitlines()[: len(lines)] == lines


def test_the_page_and_the_last_print_say_the_same_of_each_comparison(micro_results: Path, micro_report: Path) -> None:
    printed = closing_lines(micro_results, (), None)
    _, *shown = rows_after(micro_report / "index.html", 'id="comparisons"')
    routers = [line for line in shown if line[1] in ROUTERS]
    assert len(routers) > 1 and all(f"  {line[2]}" in printed for line in routers)


def test_what_perturbations_take_is_on_the_page_where_clean_tasks_were_played() -> None:
    row = {"robustness_gap": "0.25", "robustness_gap_ci": "[0.1, 0.4]"}
    none = {"robustness_gap": "", "robustness_gap_ci": ""}
    rows = [
        {"method": "slm_only", "condition": "clean", **none},
        {"method": "slm_only", "condition": "noisy", **row},
        {"method": "r2v", "condition": "noisy", **row, "robustness_gap": "-0.0004"},
        {"method": "r2v", "condition": "shift", **row},
    ]
    _, wide, _ = robustness(rows)
    shown = [["".join(cell.itertext()) for cell in line] for line in wide.iter("tr")]
    assert shown == [
        ["method", "clean less noisy", "clean less shift"],
        ["slm_only", "+0.250 [+0.100, +0.400]", ""],
        ["r2v", "-0.000 [+0.100, +0.400]", "+0.250 [+0.100, +0.400]"],
    ]
    assert robustness(rows[:1]) == []


ACCEPTANCE = {
    "accepted": False,
    "rule": "interval",
    "cloned": 0.42,
    "trained": 0.4,
    "difference": -0.02,
    "interval": [-0.05, 0.01],
    "detectable": 0.043,
    "n_tasks": 60,
}


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        (
            {"acceptance": ACCEPTANCE},
            "not accepted, so the cloned policy acts; success 0.400 after training, 0.420 before",
        ),
        ({"acceptance": {**ACCEPTANCE, "accepted": True}}, "accepted; success 0.400 after training"),
        ({"n_pairs": 3}, "published without a comparison"),
        ({"enabled": False, "n_pairs": 0}, "off, so the cloned policy acts"),
        ({"enabled": True, "n_pairs": 0}, "nothing to learn from, so the cloned policy acts"),
        ({"acceptance": {"accepted": "yes"}}, None),
    ],
)
def test_what_became_of_preference_training_is_said(
    summary: dict[str, Any], expected: str | None, tmp_path: Path, micro_results: Path
) -> None:
    results = tmp_path / "results" / "mine"
    shutil.copytree(micro_results, results)
    attempt = json.loads((results / "attempt.meta.json").read_text())
    attempt["inputs"]["preference"]["summary"] = summary
    (results / "attempt.meta.json").unlink()
    (results / "attempt.meta.json").write_text(json.dumps(attempt))
    said = read_sources(results).preference
    assert said is None if expected is None else said is not None and said.startswith(expected)


def test_the_page_says_what_became_of_preference_training(micro_results: Path, micro_report: Path) -> None:
    said = read_sources(micro_results).preference
    assert said and f"Preference training: {said}." in html.unescape((micro_report / "index.html").read_text())


@real_browser
def test_filters_steps_and_two_methods_side_by_side(chromium: Any, micro_report: Path) -> None:
    with opened(chromium, micro_report / "index.html", viewport={"width": 1200, "height": 900}) as tab:
        everything = tab.locator("#rows tr").count()
        tab.select_option("#method", "llm_only")
        tab.select_option("#condition", "noisy")
        few = tab.locator("#rows tr").count()
        assert 0 < few < everything and f"{few} of {everything} episodes" == tab.locator("#count").text_content()
        tab.select_option("#outcome", "failed")
        tab.select_option("#asked", "never")
        assert tab.locator("#rows tr").count() == 0
        tab.select_option("#outcome", "")
        tab.select_option("#asked", "asked")
        assert tab.locator("#rows tr").count() == few
        tab.locator("#rows tr").first.click()
        tab.wait_for_selector(".played .step")
        steps = tab.locator(".played .step").count()
        tab.locator("#next").click()
        assert tab.locator(".played .step:visible").count() == 1 and tab.locator("#where").text_content() == "step 1"
        tab.keyboard.press("j")
        assert tab.locator("#where").text_content() == "step 2" and steps > 1
        tab.select_option("#beside", "r2v")
        tab.wait_for_function("document.querySelectorAll('.played').length === 2")
        assert tab.evaluate("location.hash").startswith("#episode-")


@real_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1400])
def test_it_can_be_read_wide_and_narrow_light_and_dark(
    chromium: Any, micro_report: Path, scheme: str, width: int, tmp_path: Path
) -> None:
    viewport = {"width": width, "height": 900}
    with opened(chromium, micro_report / "index.html", viewport=viewport, color_scheme=scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        ink, paper = (
            sum(map(int, tab.evaluate(f"getComputedStyle(document.body).{name}.match(/\\d+/g).slice(0, 3)")))
            for name in ("color", "backgroundColor")
        )
        assert (ink > paper) == (scheme == "dark") and abs(ink - paper) > 500
        of_figure = tab.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        assert (sum(map(int, of_figure.strip("rgb()").split(","))) > 382) == (scheme == "dark")
        tab.screenshot(path=tmp_path / "page.png")


@real_browser
def test_an_injected_script_is_shown_and_does_not_run(chromium: Any, hostile_report: Path) -> None:
    with opened(chromium, hostile_report) as tab:
        title = tab.title()
        tab.select_option("#method", "r2v")
        tab.locator("#rows tr").first.click()
        tab.wait_for_selector(".played .step")
        assert HOSTILE in tab.locator(".step pre").first.text_content()
        assert HOSTILE in tab.locator("#rows td").first.text_content()
        assert tab.title() == title and tab.locator("#episode script, #episode img, #rows img").count() == 0
