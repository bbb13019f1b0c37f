"""Failures of a step: the agent's mistakes as reproducible text, and pages that a site did not serve."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any


class Navigations:
    """Watcher of the page loads of a task's context. Addresses outside `sites` are ignored: they are the agent's
    choice."""

    def __init__(self, sites: list[str]) -> None:
        self._sites = tuple(sites)
        self._faults: list[str] = []
        self._open: list[Any] = []

    def watch(self, context: Any) -> None:
        """Subscribe to the context's requests and responses."""
        context.on("request", self._asked)
        context.on("response", self._answered)
        context.on("requestfailed", self._failed)

    def fault(self) -> str | None:
        """Return the first page that a site failed to serve, None without one, and forget all faults."""
        fault = self._faults[0] if self._faults else None
        self._faults.clear()
        return fault

    def late(self, seconds: float) -> str | None:
        """Wait at most `seconds` for a response to every requested page; return the fault of a late one, else None."""
        until = time.monotonic() + seconds
        while (request := self._waiting()) is not None:
            if time.monotonic() >= until:
                return f"site: {request.url[:200]} did not answer within {seconds:g} s"
            request.frame.page.wait_for_timeout(50)
        return None

    def _waiting(self) -> Any | None:
        """Return the oldest unanswered page request, None without one. Requests of closed tabs are dropped."""
        self._open = [request for request in self._open if not request.frame.page.is_closed()]
        return self._open[0] if self._open else None

    def _asked(self, request: Any) -> None:
        if self._is_page(request):
            self._open.append(request)

    def _settled(self, request: Any) -> None:
        if request in self._open:
            self._open.remove(request)

    def _answered(self, response: Any) -> None:
        self._settled(response.request)
        if response.status >= 500 and self._is_page(response.request):
            self._faults.append(f"site: {response.url[:200]} answered {response.status}")

    def _failed(self, request: Any) -> None:
        self._settled(request)
        if self._is_page(request) and (reason := request.failure or "") and "ERR_ABORTED" not in reason:
            self._faults.append(f"site: {request.url[:200]}: {reason}")

    def _is_page(self, request: Any) -> bool:
        with suppress(Exception):  # the frame's page was closed meanwhile
            return bool(
                request.url.startswith(self._sites)
                and request.is_navigation_request()
                and not request.frame.parent_frame
            )
        return False


_CAUSES = (
    "intercepts pointer events",
    "is not visible",
    "is not enabled",
    "is not stable",
    "did not find some options",
)


def mistake_of(error: Exception) -> str:
    """Return a call's error as one line that is the same in every replay: of playwright's waiting log, only the cause
    is kept."""
    first, _, log = str(error).partition("\n")
    causes = [cause for cause in _CAUSES if cause in log]
    return f"{type(error).__name__}: {first}" + (f" (the element {causes[0]})" if causes else "")
