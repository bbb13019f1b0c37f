"""Chromium shared by all tasks of a worker; BrowserGym starts two per episode, which take most of a reset's time."""

from __future__ import annotations

import importlib
import time
from typing import Any


class _SharedChromium:
    """Browsers of this process by `slow_mo`. Their contexts share nothing."""

    def __init__(self) -> None:
        self._browsers: dict[int, Any] = {}

    def start(self, playwright: Any, browser: str, flags: list[str]) -> None:
        """Make `playwright` launch `browser`, once per value of `slow_mo`."""
        original = playwright.chromium.launch

        def launch(**options: Any) -> Any:
            pace = int(options.get("slow_mo") or 0)
            if pace not in self._browsers:
                arguments = [*(options.pop("args", None) or []), *flags]
                self._browsers[pace] = original(executable_path=browser, **{**options, "args": arguments})
            return _UnclosedBrowser(self._browsers[pace])

        playwright.chromium.launch = launch

    def require_alive(self) -> None:
        """Raise RuntimeError if a browser died."""
        if not all(browser.is_connected() for browser in self._browsers.values()):
            raise RuntimeError("the browser died")


class _UnclosedBrowser:
    """Proxy of a browser whose `close` leaves it running."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._browser, name)

    def close(self) -> None:
        """Keep the browser running."""


class _Chat:
    """BrowserGym's chat without its window."""

    def __init__(self, **_: Any) -> None:
        self.messages: list[dict[str, Any]] = []

    def add_message(self, role: str, msg: str) -> None:
        """Add a message to the chat."""
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def wait_for_user_message(self) -> None:
        """Return at once; no user answers."""

    def close(self) -> None:
        """Do nothing; the chat holds no resource."""


CHROMIUM = _SharedChromium()
_WAITING = "check clear click dblclick drag_to fill focus hover press scroll_into_view_if_needed select_option uncheck"
_SHORT = 500
"""BrowserGym's timeout for an element, in milliseconds. On a busy machine it would count slowness as the agent's
mistake in an episode and not in its replay."""


def start_playwright(browser: str, flags: list[str]) -> None:
    """Start playwright as BrowserGym's own, with the browser at this path for all launches."""
    core = importlib.import_module("browsergym.core")
    playwright = importlib.import_module("playwright.sync_api").sync_playwright().start()
    CHROMIUM.start(playwright, browser, flags)
    vars(core)["_set_global_playwright"](playwright)
    vars(importlib.import_module("browsergym.core.env"))["Chat"] = _Chat


def wait_longer(seconds: float) -> None:
    """Make BrowserGym's actions wait `seconds` for an element instead of `_SHORT`."""
    locator = importlib.import_module("playwright.sync_api").Locator
    for name in _WAITING.split():
        setattr(locator, name, _patient(getattr(locator, name), seconds * 1000))


def _patient(method: Any, milliseconds: float) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        if named.get("timeout") == _SHORT:
            named["timeout"] = milliseconds
        return method(*arguments, **named)

    return call
