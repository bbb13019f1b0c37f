"""The price of a stage: its tokens of the LLM at the list price, without discounts of provider batches or caches."""

from __future__ import annotations

import math

from r2v.config import Config, TeacherConfig
from r2v.errors import UsageError
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.teacher import teacher_rate
from r2v.pipeline.plan.workload import Workload
from r2v.wire.exchange import TokenCounts


def dollars(work: Workload, config: Config) -> float | None:
    """What a stage's work costs in USD; None where the teacher's model has no price, nan where the work is not
    counted."""
    if config.teacher.provider == "scripted" or not work.llm:
        return 0.0
    rate = _rate(config.teacher)
    if rate is None or math.isnan(work.llm):
        return None if rate is None else math.nan
    tokens = TokenCounts(fresh=round(work.llm_in), output=round(work.llm_out))
    return rate.usd(tokens, batch=False, requests=work.llm)


def longest_prompt(config: Config) -> float:
    """Tokens that the LLM is shown at most: what its context leaves beside the reply; infinity where none is known."""
    teacher = config.teacher
    rate = None if teacher.provider == "scripted" else _rate(teacher)
    context = teacher.context or (rate.context if rate else None)
    return math.inf if context is None else max(1, context - teacher.max_tokens)


def mean_prompt(first: float, page: float, action: float, steps: float, longest: float) -> float:
    """Mean tokens of the prompts of an episode, each cut to `longest`: the t-th shows t pages and t - 1 actions."""
    count = max(1, round(steps))
    return sum(min(longest, first + page * t + action * (t - 1)) for t in range(1, count + 1)) / count


def _rate(teacher: TeacherConfig) -> Rate | None:
    try:
        return teacher_rate(teacher)
    except UsageError:
        return None


def basis(config: Config) -> str:
    """Which prices these are, in one line."""
    teacher = config.teacher
    if teacher.provider == "scripted" and config.verifier.mode == "llm_judge":
        return "dollars: without the judge's, whose model is that of the collected runs; it says them before it asks"
    if teacher.provider == "scripted":
        return "dollars: none, for the benchmark's own expert answers"
    if dollars(Workload(llm=1), config) is None:
        return (
            f"dollars: unknown, for {teacher.model_name} has no price in {prices_version()}; set "
            "teacher.usd_in and teacher.usd_out, USD per million tokens"
        )
    given = [name for name in ("usd_in", "usd_out") if getattr(teacher, name) is not None]
    source = f"{prices_version()}"
    if given:
        source = " and ".join(f"teacher.{name}" for name in given) + ("" if len(given) == 2 else f", and {source}")
    cap = "" if teacher.max_usd is None else f"; teacher.max_usd stops a collection at ${teacher.max_usd:,.2f}"
    return (
        f"dollars: list price of {teacher.model_name} by {source}; provider batches cost half where they exist, "
        f"and equal questions of one stage are paid once{cap}"
    )
