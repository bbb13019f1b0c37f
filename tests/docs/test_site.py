"""The built site: a search finds the page with the answer, and no page fetches anything from another host."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from r2v.envs.browser.chromium import chromium_flags, find_chromium
from tests.docs.pages import REPOSITORY
from tests.envs.browser import real_browser

FETCHED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\ssrc(?:set)?="([^"]+)"|<link\b[^>]*\shref="([^"]+)"')
"""Addresses that a browser fetches by itself."""
MENU = {"Start", "Results", "Use with an agent", "Pipeline", "Benchmarks", "Cluster", "Research", "Extend", "Reference"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the folder's address on the loopback: the search reads its index by a request."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_menu_has_topics_and_neither_the_log_nor_long_tables() -> None:
    text = (REPOSITORY / "mkdocs.yml").read_text()
    menu = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert {name for section in menu for name in section} == MENU
    pages = re.findall(r"[\w/-]+\.md", str(menu))
    assert len(pages) == len(set(pages))
    assert {page for page in pages if page.startswith("api/")} == {"api/r2v.md"}
    assert not {"LOG.md", "moved-modules.md", "all-baselines.md"} & set(pages)


def test_the_first_page_begins_with_three_ways_in() -> None:
    page = (REPOSITORY / "docs" / "index.md").read_text()
    first = page[: page.index("\n### ")]
    assert all(way in first for way in ("**try it**", "**use it with my agent**", "**run it on my cluster**"))


@pytest.mark.whole
def test_no_page_names_a_foreign_host_that_is_fetched(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        addresses = [first or second for first, second in FETCHED.findall(text)]
        assert not [one for one in addresses if one.startswith(("http:", "https:", "//"))], page
        assert 'data-md-component="source"' not in text, f"{page}: the theme's script asks api.github.com"


@pytest.mark.whole
@real_browser
def test_the_search_finds_the_page_that_answers_and_asks_no_other_host(site: Path) -> None:
    playwright = importlib.import_module("playwright.sync_api")
    requests: list[str] = []
    with served(site) as address, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(find_chromium()), args=chromium_flags())
        tab: Any = browser.new_page()
        tab.on("request", lambda request: requests.append(request.url))

        def hits(query: str) -> list[str]:
            tab.goto(f"{address}?q={query}")
            tab.wait_for_selector(".md-search-result__item a")
            links = tab.eval_on_selector_all(".md-search-result__item > a", "all => all.map(one => one.href)")
            return [link.removeprefix(address).partition("?")[0].partition("#")[0] for link in links]

        assert hits("resume")[0] == "pipeline/"
        assert hits("my%20own%20agent")[0] == "serve/"
        assert hits("cost")[0] == "size/"
        for query in ("resume", "my%20own%20agent", "cost"):
            unsearched = ("api/", "LOG/", "moved-modules/", "CHANGELOG/")
            assert not [page for page in hits(query)[:5] if page.startswith(unsearched)]
        browser.close()
    assert requests and {url for url in requests if not url.startswith(address)} == set()
