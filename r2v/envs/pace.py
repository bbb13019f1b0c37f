"""Pace of a benchmark: speed of its worlds and length of its episodes, for estimates before any episode is played.

A benchmark declares its own as the attribute `pace`. Fields left out have conservative defaults (episodes of
`inference.max_steps`, every LLM action different from the small policy's). PACES holds the declarations that must be
readable before a benchmark is installed; a benchmark without one gets `UNDECLARED`. Every field has a basis, and
values measured by earlier runs replace declared ones (`Pace.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from r2v.errors import UsageError

_DECLARED = "declared by the benchmark"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Declared or measured pace of a benchmark. Token counts are approximate, for a common tokenizer."""

    reset_seconds: float = 1.0
    """Seconds to set a task up."""
    step_seconds: float = 1.0
    """Seconds from an action to its observation."""
    cpu_share: float = 1.0
    """Share of these seconds in which the world keeps a CPU busy."""
    student_steps: float | None = None
    """Mean steps of the small policy's episodes; None: inference.max_steps."""
    teacher_steps: float | None = None
    """Mean steps of the LLM's episodes; None: inference.max_steps."""
    differing: float = 1.0
    """Share of the small policy's states at which the LLM's action differs."""
    branched: float | None = None
    """Actions per state, among K samples and the LLM's, that are rolled out; None: all of them."""
    remembered: float = 0.0
    """Share of an evaluation's requests to local models that another method or threshold made in the same state, so
    that the reply is cached."""
    prompt_tokens: float = 500.0
    """Tokens before the first observation: task and tools."""
    page_tokens: float = 500.0
    """Tokens of an observation."""
    action_tokens: float = 40.0
    """Tokens of an action."""
    tasks: int = 1000
    """Number of tasks if the benchmark cannot be loaded."""
    changing: float = 0.0
    """Share of tasks that change a shared world if the benchmark cannot be loaded."""
    basis: Mapping[str, str] = field(default_factory=dict)
    """Source of the value by field."""

    def why(self, name: str) -> str:
        """Return the basis of a field."""
        return self.basis.get(name, _DECLARED)

    def measured(self, basis: str, **values: float) -> Pace:
        """Return a copy with values that an earlier run measured."""
        return replace(self, **values, basis={**self.basis, **dict.fromkeys(values, basis)})  # type: ignore[arg-type]

    def lines(self) -> list[str]:
        """Return a line per basis with its fields and values."""
        groups: dict[str, list[str]] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "basis" and value is not None:
                groups.setdefault(self.why(item.name), []).append(f"{item.name} {value:g}")
        return [f"{basis}: {', '.join(values)}" for basis, values in groups.items()]


def _with_basis(pace: Pace, **basis: str) -> Pace:
    """Return the pace with the basis "assumed" for every field not in `basis`; keys join field names by __."""
    named = {item: text for key, text in basis.items() for item in key.split("__")}
    return replace(pace, basis={item.name: named.get(item.name, "assumed") for item in fields(Pace)})


UNDECLARED = _with_basis(Pace())
"""Pace of a benchmark without a declaration or measurements."""

PACES = {
    "webarena": _with_basis(
        Pace(
            reset_seconds=7.0,
            step_seconds=1.5,
            cpu_share=0.3,
            student_steps=22,
            teacher_steps=12,
            differing=0.6,
            branched=2.5,
            prompt_tokens=1500,
            page_tokens=4000,
            action_tokens=60,
            tasks=812,
            changing=374 / 812,
        ),
        reset_seconds__step_seconds__cpu_share="measured on stub sites in Chromium, with the benchmark's own delays",
        tasks__changing="of the benchmark",
    ),
    "swebench": _with_basis(
        Pace(
            reset_seconds=10.0,
            step_seconds=3.0,
            cpu_share=0.5,
            student_steps=35,
            teacher_steps=35,
            differing=0.6,
            branched=2.5,
            prompt_tokens=2500,
            page_tokens=1000,
            action_tokens=150,
            tasks=500,
        ),
        tasks="of the benchmark (SWE-bench Verified)",
    ),
}
"""Paces of benchmarks that cannot be loaded before their sites or packages are installed."""


def pace_of(name: str, benchmark: Any | None) -> Pace:
    """Return a benchmark's own declaration, else PACES[name], else `UNDECLARED`; `benchmark` is None if not loaded.
    Raises UsageError for a declaration that is not a `Pace`."""
    declared = getattr(benchmark, "pace", None)
    if declared is None:
        return PACES.get(name, UNDECLARED)
    if not isinstance(declared, Pace):
        raise UsageError(
            f"env.benchmark={name}: pace is {declared!r:.40}; expected an r2v.envs.pace.Pace; mend or remove it"
        )
    return declared
