"""Counters of the server in Prometheus' text format, without prompts, keys or names of sessions."""

from __future__ import annotations

from collections import defaultdict

_ABOUT = {
    "r2v_requests_total": "Requests by format, model that answered, and status sent to the client.",
    "r2v_usd_total": "USD of the forwarded requests; unknown: at most, for replies whose usage never came.",
    "r2v_tokens_total": "Tokens of the forwarded requests.",
    "r2v_seconds_total": "Seconds from a request to the end of its reply.",
    "r2v_client_left_total": "Replies whose client left before their end.",
    "r2v_stripped_total": "Requests sent again without thoughts that the provider called invalid.",
    "r2v_open_requests": "Requests that are being answered.",
}


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        assert name in _ABOUT, name
        self._values[name, tuple(sorted(labels.items()))] += amount

    def text(self) -> str:
        """Return all counters as text."""
        lines = []
        for name, about in _ABOUT.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {'gauge' if 'open' in name else 'counter'}"]
            for (counter, labels), value in sorted(self._values.items()):
                if counter == name:
                    shown = ",".join(f'{key}="{text}"' for key, text in labels)
                    lines.append(f"{name}{{{shown}}} {value:.10g}" if shown else f"{name} {value:.10g}")
        return "\n".join(lines) + "\n"
