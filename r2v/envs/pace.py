"""Pace: how fast a benchmark's worlds are and how long its episodes last, for estimates made before anything is played.

A benchmark declares its own as an attribute `pace`; what it leaves out is taken on the safe side (episodes as long as
`inference.max_steps`, every action of the LLM another than the small policy's). Benchmarks whose adapter is yet to come
are declared here, and one that declares nothing goes by `UNDECLARED`. Every field has its basis, and what earlier runs
have measured replaces what was declared (`Pace.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from r2v.errors import UsageError

_DECLARED = "declared by the benchmark"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a benchmark says of its pace. Tokens are about those of a usual tokenizer."""

    reset_seconds: float = 1.0
    """Of setting a task up."""
    step_seconds: float = 1.0
    """Of one action, until its observation is there."""
    cpu_share: float = 1.0
    """Share of these seconds in which the world keeps a CPU busy; the rest it waits."""
    student_steps: float | None = None
    """Mean steps of an episode that the small policy plays; None: inference.max_steps."""
    teacher_steps: float | None = None
    """Mean steps of an episode that the LLM plays; None: inference.max_steps."""
    differing: float = 1.0
    """Share of the small policy's states at which the LLM acts otherwise."""
    branched: float | None = None
    """Actions of a state, among K samples and the LLM's, that are played on; None: all of them."""
    remembered: float = 0.0
    """Share of an evaluation's questions to local models that another method or threshold has asked in the same state,
    so that they are answered from memory."""
    prompt_tokens: float = 500.0
    """Tokens before the first observation: task and tools."""
    page_tokens: float = 500.0
    """Tokens of an observation."""
    action_tokens: float = 40.0
    """Tokens of an action."""
    tasks: int = 1000
    """Tasks in all, where the benchmark itself cannot be asked."""
    changing: float = 0.0
    """Share of them that change a world which others share, where the benchmark itself cannot be asked."""
    basis: Mapping[str, str] = field(default_factory=dict)
    """Where a field's value comes from."""

    def why(self, name: str) -> str:
        """The basis of a field."""
        return self.basis.get(name, _DECLARED)

    def measured(self, basis: str, **values: float) -> Pace:
        """The same with values that an earlier run has measured."""
        return replace(self, **values, basis={**self.basis, **dict.fromkeys(values, basis)})  # type: ignore[arg-type]

    def lines(self) -> list[str]:
        """Each basis with the fields that rest on it."""
        groups: dict[str, list[str]] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "basis" and value is not None:
                groups.setdefault(self.why(one.name), []).append(f"{one.name} {value:g}")
        return [f"{basis}: {', '.join(values)}" for basis, values in groups.items()]


def _with_basis(pace: Pace, **basis: str) -> Pace:
    """The pace where every field that has no basis of its own is an assumption."""
    named = {one: text for key, text in basis.items() for one in key.split("__")}
    return replace(pace, basis={one.name: named.get(one.name, "assumed") for one in fields(Pace)})


UNDECLARED = _with_basis(Pace())
"""Of a benchmark that declares nothing, and that nothing has played yet."""

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
"""Benchmarks whose tasks may lie elsewhere, or are not listed before something is installed."""


def pace_of(name: str, benchmark: Any | None) -> Pace:
    """The pace of a benchmark: its own declaration, else the one of its name here, else `UNDECLARED`. `benchmark` is
    None where it was not loaded. Raises UsageError where what it declares is no `Pace`."""
    declared = getattr(benchmark, "pace", None)
    if declared is None:
        return PACES.get(name, UNDECLARED)
    if not isinstance(declared, Pace):
        raise UsageError(
            f"env.benchmark={name}: pace is {declared!r:.40}, where an r2v.envs.pace.Pace is asked for; mend or leave "
            "it out"
        )
    return declared
