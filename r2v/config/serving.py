"""Configuration of the server in front of agents. Nothing here changes a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.config.checks import RUNTIME
from r2v.constraints import Line, Name, Positive, Range, check_fields


def _runtime(default: Any) -> Any:
    return field(default=default, metadata=RUNTIME)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The server of `r2v serve` and `r2v record`. Its LLM is `teacher`, and `teacher.max_usd` caps everything that it
    forwards."""

    name: Name = _runtime("default")
    """Name of the server: books, logs and recorded sessions are in data/served/<name>."""
    host: Line = _runtime("127.0.0.1")
    """Address to listen on."""
    port: Annotated[int, Range(at_least=0, at_most=65_535)] = _runtime(8484)
    """Port to listen on; 0: any free one."""
    shadow: bool = _runtime(False)
    """Decide at each step and log it, but let the LLM act."""
    llm_down: Literal["error", "small"] = _runtime("error")
    """Answer where the LLM cannot be reached: error (status 503), or the small model within its domain."""
    any_model: bool = _runtime(False)
    """Ask the LLM whichever model a client names. Otherwise names that are not R2V's pass unchanged."""
    max_usd_per_key: Positive | None = _runtime(None)
    """Hard cap in USD on what the clients of one key may spend; None: none."""
    max_usd_per_session: Positive | None = _runtime(None)
    """Hard cap in USD on one session; None: none."""
    max_usd_per_day: Positive | None = _runtime(None)
    """Hard cap in USD on one day, in UTC; None: none."""
    idle_seconds: Positive = _runtime(300.0)
    """Longest silence within a reply. A reply as a whole has no limit."""
    drain_seconds: Positive = _runtime(120.0)
    """Seconds that a reply is read on after its client has left, for its usage. Without one it is booked as unknown."""

    def __post_init__(self) -> None:
        check_fields("serve", self)
