"""Price of a stage: its LLM tokens at list prices, without discounts for provider batches or caches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from r2v.config import Config, TeacherConfig
from r2v.errors import UsageError
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.teacher import teacher_rate
from r2v.pipeline.plan.workload import Workload
from r2v.wire.exchange import TokenCounts


def dollars(work: Workload, config: Config) -> float | None:
    """Return the US dollars of a stage's work; None if a model has no price, nan if the work is not counted."""
    total = 0.0
    for endpoint, requests, tokens_in, tokens_out in _billed(work, config):
        rate = _rate(endpoint)
        if rate is None:
            return None
        if math.isnan(requests):
            total = math.nan
        elif requests:
            tokens = TokenCounts(fresh=round(tokens_in), output=round(tokens_out))
            total += rate.usd(tokens, batch=False, requests=requests)
    return total


def endpoints(config: Config) -> list[TeacherConfig]:
    """Return the models of the pair that are behind providers' APIs."""
    return [endpoint for endpoint, *_ in _billed(Workload(llm=1, drawn=1), config)]


def questions(work: Workload, config: Config) -> dict[str, float]:
    """Return the requests to providers, by the name of the model."""
    counts: dict[str, float] = {}
    for endpoint, requests, *_ in _billed(work, config):
        rate = _rate(endpoint)
        name = endpoint.model_name if rate is None else rate.model
        counts[name] = counts.get(name, 0.0) + requests
    return counts


def _billed(work: Workload, config: Config) -> Iterator[tuple[TeacherConfig, float, float, float]]:
    """Yield (model, requests, prompt tokens, reply tokens) of each model of the pair that is a provider's."""
    if config.teacher.provider != "scripted" and work.llm:
        yield config.teacher, work.llm, work.llm_in, work.llm_out
    if config.policy.is_api and work.drawn:
        yield config.policy.as_endpoint(config.teacher), work.drawn, work.small_in, work.small_out


def longest_prompt(teacher: TeacherConfig) -> float:
    """Return the most prompt tokens of a model: its context less the reply; infinity for an unknown context."""
    rate = None if teacher.provider == "scripted" else _rate(teacher)
    context = teacher.context or (rate.context if rate else None)
    return math.inf if context is None else max(1, context - teacher.max_tokens)


def mean_prompt(first: float, page: float, action: float, steps: float, longest: float) -> float:
    """Return the mean tokens of an episode's prompts, each cut to `longest`: the t-th has t pages and t - 1 actions."""
    count = max(1, round(steps))
    return sum(min(longest, first + page * t + action * (t - 1)) for t in range(1, count + 1)) / count


def _rate(teacher: TeacherConfig) -> Rate | None:
    try:
        return teacher_rate(teacher)
    except UsageError:
        return None


def basis(config: Config) -> str:
    """Return the source of the prices, in one line."""
    teacher = config.teacher
    if config.policy.is_api:
        return _basis_of_two(config)
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


def _basis_of_two(config: Config) -> str:
    """Return the source of the prices if the small model is behind an API too."""
    models = endpoints(config)
    if lacking := [endpoint.model_name for endpoint in models if _rate(endpoint) is None]:
        return (
            f"dollars: unknown, for {' and '.join(lacking)} have no price in {prices_version()}; set usd_in and "
            "usd_out of teacher or policy.api, USD per million tokens"
        )
    rates = [
        f"{endpoint.model_name} at ${rate.input:g} and ${rate.output:g}"
        for endpoint in models
        if (rate := _rate(endpoint))
    ]
    cap = "" if config.teacher.max_usd is None else f"; teacher.max_usd stops at ${config.teacher.max_usd:,.2f}"
    return (
        f"dollars: list prices, {' and '.join(rates)} a million tokens in and out; provider batches cost half where "
        f"they exist, and equal questions of one stage are paid once{cap}"
    )
