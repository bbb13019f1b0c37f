"""The page shows foreign content as text, reads nothing from a network, and works in a real browser."""

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
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

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
from r2v.report.page import robustness, verdict_of
from r2v.report.sources import read_sources
from tests.envs.browser import real_browser

HOSTILE = "</script><script>document.title='injected'</script><img src=x onerror=\"document.title='injected'\">"
"""Markup in an injected instruction, which must stay without effect."""


def hostile(episode: Episode) -> Episode:
    """Return an episode whose environment, model and task all write markup."""
    step = episode.steps[0]
    action = replace(step.action, raw_text=HOSTILE)
    first = replace(step, observation=Observation(raw_text=HOSTILE), action=action)
    told = replace(episode.metadata, goal=HOSTILE, task_id=f"{episode.metadata.task_id}{HOSTILE}")
    return replace(episode, metadata=told, steps=(first, *episode.steps[1:]))


@pytest.fixture(scope="module")
def hostile_report(micro_results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a report of episodes that attack it."""
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
    """Yield a Chromium in which each test opens its own page."""
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(find_chromium()), args=chromium_flags())
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, page: Path, **options: Any) -> Iterator[Any]:
    """Yield the page alone: no request leaves the folder, no error is on the console."""
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
    """Return the cells of the first table behind this text, row by row."""
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
    assert f"<h1>{lines[0]}</h1>" in page and page.count("<h1") == 1
    assert closing_lines(micro_results, (), None).splitlines()[: len(lines)] == lines


def test_the_page_and_the_last_print_say_the_same_of_each_comparison(micro_results: Path, micro_report: Path) -> None:
    printed = closing_lines(micro_results, (), None)
    _, *shown = rows_after(micro_report / "index.html", 'id="comparisons"')
    routers = [line for line in shown if line[1] in ROUTERS]
    assert len(routers) > 1 and all(f"  {line[2]}" in printed for line in routers)


def test_what_perturbations_take_is_on_the_page_where_clean_tasks_were_played() -> None:
    row = {"robustness_gap": 0.25, "robustness_gap_ci": [0.1, 0.4]}
    none = {"robustness_gap": None, "robustness_gap_ci": None}
    rows = [
        {"method": "slm_only", "condition": "clean", **none},
        {"method": "slm_only", "condition": "noisy", **row},
        {"method": "r2v", "condition": "noisy", **row, "robustness_gap": -0.0004},
        {"method": "r2v", "condition": "shift", **row},
    ]
    _, wide, _ = robustness(rows)
    shown = [["".join(cell.itertext()) for cell in line] for line in wide.iter("tr")]
    assert shown == [
        ["method", "clean less noisy", "clean less shift"],
        ["slm_only", "+.250 [+.100, +.400]", ""],
        ["r2v", "-.000 [+.100, +.400]", "+.250 [+.100, +.400]"],
    ]
    assert robustness(rows[:1]) == []


@pytest.mark.parametrize(
    ("verdict", "opposite", "expected"),
    [
        ("supported", False, "shown, p < 0.01: +.200 [+.100, +.300]"),
        ("supported", True, "worse, p < 0.01: +.200 [+.100, +.300]"),
        ("inconclusive", False, "not shown, p < 0.01: +.200 [+.100, +.300]"),
    ],
)
def test_a_verdict_tells_worse_from_not_shown(verdict: str, opposite: bool, expected: str) -> None:
    row = {
        "difference": 0.2, "ci_lower": 0.1, "ci_upper": 0.3, "p_holm": 0.001, "family": "f", "verdict": "higher",
        "min_detectable_difference": None, "value_a": 0.7, "value_b": 0.5,
    }  # fmt: skip
    claim = {"evidence_ids": ["a"], "verdict": verdict, "opposite": opposite}
    assert verdict_of(claim, {"a": row}) == expected


def test_a_useless_score_is_no_better_than_a_constant() -> None:
    claim = {"evidence_ids": ["a/brier", "a/brier_base_rate"], "verdict": "supported", "opposite": True}
    row = {"brier": 0.0659, "brier_base_rate": 0.0653}
    assert verdict_of(claim, {"a": row}) == "no better than a constant: Brier .0659, constant .0653"


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
    assert said and f"Preference training, by the folder's own word: {said}." in html.unescape(
        (micro_report / "index.html").read_text()
    )


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
        [first] = tab.locator("#rows tr[aria-selected=true] td").all_text_contents()[:1]
        assert address(tab) == {
            "condition": "noisy", "task": first, "seed": "1", "method": "llm_only", "step": "2", "beside": "r2v"
        }  # fmt: skip


@real_browser
def test_a_link_opens_the_episode_the_step_and_the_method_beside_it(chromium: Any, micro_report: Path) -> None:
    with opened(chromium, micro_report / "index.html", viewport={"width": 1200, "height": 900}) as tab:
        columns = tab.locator("#contrast .compared")
        assert columns.count() == 3
        columns.nth(1).locator("a").click()
        tab.wait_for_function("document.querySelectorAll('.played').length === 2")
        wanted = address(tab)
        assert (wanted["method"], wanted["beside"]) == ("r2v", "slm_only") and int(wanted["step"]) >= 1
        shown, link = tab.locator("#episode").inner_text(), tab.url
        tab.goto("about:blank")
        tab.goto(link)
        tab.wait_for_function("document.querySelectorAll('.played').length === 2")
        assert tab.locator("#episode").inner_text() == shown and tab.locator(".played .step:visible").count() == 2
        assert tab.locator("#where").text_content() == f"step {wanted['step']}"
        assert 0 < tab.locator("#episode").bounding_box()["y"] < 300, "the episode is in view, below its controls"


def address(tab: Any) -> dict[str, str]:
    """Return the parts of the page's address behind its #."""
    return dict(parse_qsl(tab.evaluate("location.hash.slice(1)")))


@real_browser
def test_the_first_screen_has_the_sentence_the_number_the_reason_and_the_whole_frontier(
    chromium: Any, micro_report: Path
) -> None:
    with opened(chromium, micro_report / "index.html", viewport={"width": 1440, "height": 900}) as tab:
        for part in ("h1", ".number", ".reason", "#frontier figcaption", *("#frontier svg",) * 2):
            box = tab.locator(part).last.bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= 900, part
        sizes = tab.evaluate(TEXT_SIZES, "#frontier svg text")
        assert min(sizes) >= 12 * 96 / 72 - 0.01
        drawn = tab.locator("#frontier > .panels > div").first.locator("svg text").all_text_contents()
        methods = [name.removesuffix("_router") for name in frontier_methods(micro_report)]
        assert methods and set(methods) <= set(drawn)


TEXT_SIZES = """selector => [...document.querySelectorAll(selector)].map(text =>
    parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b))"""
"""Sizes of a figure's texts on the screen, in pixels."""


def frontier_methods(report: Path) -> list[str]:
    """Return the methods of the frontier's CSV file."""
    with (report / "data" / "frontier.csv").open(newline="") as file:
        return list(dict.fromkeys(row["method"] for row in csv.DictReader(file)))


@real_browser
def test_a_phone_can_read_every_figure(chromium: Any, micro_report: Path) -> None:
    with opened(chromium, micro_report / "index.html", viewport={"width": 390, "height": 844}) as tab:
        assert min(tab.evaluate(TEXT_SIZES, "figure svg text")) > 12


@real_browser
def test_no_serious_fault_of_accessibility_light_or_dark(chromium: Any, micro_report: Path) -> None:
    script = files("axe_core_python").joinpath("axe.min.js").read_text()
    size = {"width": 1440, "height": 900}
    with opened(chromium, micro_report / "index.html", viewport=size, bypass_csp=True) as tab:
        tab.locator("#rows tr").first.click()
        tab.wait_for_selector(".played .step")
        tab.add_script_tag(content=script)
        for scheme, checks in (("light", "axe.run()"), ("dark", "axe.run({runOnly: ['color-contrast']})")):
            tab.emulate_media(color_scheme=scheme)
            found = tab.evaluate(checks)
            assert any(one["id"] == "color-contrast" for one in found["passes"])
            faults = {one["id"]: one["nodes"][0]["html"] for one in found["violations"] if one["impact"] in SERIOUS}
            assert faults == {}, scheme


SERIOUS = ("serious", "critical")


@real_browser
def test_printed_it_shows_the_story_and_the_proofs_and_no_controls(chromium: Any, micro_report: Path) -> None:
    with opened(chromium, micro_report / "index.html", viewport={"width": 688, "height": 1000}) as tab:
        tab.emulate_media(media="print", color_scheme="dark")
        assert tab.locator("#contrast").is_visible() and tab.locator("#provenance").is_visible()
        assert not tab.locator("#episodes").is_visible() and not tab.locator("nav").is_visible()
        assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(28, 28, 28)", "ink on paper"
        assert tab.evaluate("document.documentElement.scrollWidth") <= 688


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
