"""One Chromium for all tasks of a worker: BrowserGym starts two for every episode, which cost most of a reset."""

from __future__ import annotations

import importlib
import time
from typing import Any


class _SharedChromium:
    """The browsers of this process, by what they were started with. Contexts share nothing."""

    def __init__(self) -> None:
        self._browsers: dict[int, Any] = {}
        self._launch: Any = None

    def start(self, playwright: Any, browser: str, flags: list[str]) -> None:
        """Let `playwright` start `browser`, once for each pace (`slow_mo`)."""
        original = playwright.chromium.launch

        def launch(**wanted: Any) -> Any:
            pace = int(wanted.get("slow_mo") or 0)
            if pace not in self._browsers:
                arguments = [*(wanted.pop("args", None) or []), *flags]
                self._browsers[pace] = original(executable_path=browser, **{**wanted, "args": arguments})
            return _Kept(self._browsers[pace])

        playwright.chromium.launch = launch

    def require_alive(self) -> None:
        """Raises RuntimeError where a browser died."""
        if not all(browser.is_connected() for browser in self._browsers.values()):
            raise RuntimeError("the browser died")


class _Kept:
    """A browser whose `close` leaves it running."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._browser, name)

    def close(self) -> None:
        """Stay."""


class _Chat:
    """BrowserGym's chat without a window: the same messages."""

    def __init__(self, **_: Any) -> None:
        self.messages: list[dict[str, Any]] = []

    def add_message(self, role: str, msg: str) -> None:
        """Add a message to the chat."""
        self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def wait_for_user_message(self) -> None:
        """Nobody answers."""

    def close(self) -> None:
        """Nothing is held."""


CHROMIUM = _SharedChromium()
_WAITING = "check clear click dblclick drag_to fill focus hover press scroll_into_view_if_needed select_option uncheck"
_SHORT = 500
"""Milliseconds after which BrowserGym's actions give up an element. A busy machine takes longer, and a step that failed
because others compute would be the agent's mistake in one episode and none in its replay."""


def start_playwright(browser: str, flags: list[str]) -> None:
    """Start playwright as BrowserGym's own, with the browser at this path for all it launches."""
    core = importlib.import_module("browsergym.core")
    playwright = importlib.import_module("playwright.sync_api").sync_playwright().start()
    CHROMIUM.start(playwright, browser, flags)
    vars(core)["_set_global_playwright"](playwright)
    vars(importlib.import_module("browsergym.core.env"))["Chat"] = _Chat


def wait_longer(seconds: float) -> None:
    """Let BrowserGym's actions wait so long for an element."""
    locator = importlib.import_module("playwright.sync_api").Locator
    for name in _WAITING.split():
        setattr(locator, name, _patient(getattr(locator, name), seconds * 1000))


def _patient(method: Any, milliseconds: float) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        if named.get("timeout") == _SHORT:
            named["timeout"] = milliseconds
        return method(*arguments, **named)

    return call
