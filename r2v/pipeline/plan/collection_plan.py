"""Plans of a paid collection, by provider batches and by direct calls, before any request is sent.

    if line := collection_line(job("collect"), config, facts_here(config)):
        print(line)  # collection plan: episodes=500 batches=$1.98/14.00h direct=$3.97/0.50h chosen=direct ...

The figures come from the benchmark's pace; `r2v collect --dry-run` prints the same line from a measured sample of
requests. A resumed run needs fewer requests.
"""

from __future__ import annotations

import math
from dataclasses import replace

from r2v.config import Config
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from r2v.extensions import is_dotted
from r2v.llm.providers.dispatch.batch_or_direct import collection_plans
from r2v.llm.providers.teacher import teacher_rate
from r2v.pipeline.graph import as_configured
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts
from r2v.pipeline.plan.stage_parts import parts_of
from r2v.pipeline.plan.workload import Workload
from r2v.pipeline.rows import Job
from r2v.rollout.model_factory import WIDEST, conversations_of
from r2v.wire.exchange import TokenCounts


def collection_line(row: Job, config: Config, facts: BenchmarkFacts) -> str | None:
    """Return both plans of a collection in a line; None for other jobs, unpaid teachers, unknown tasks or prices."""
    teacher = config.teacher
    if teacher.provider == "scripted" or row.place is not None or as_configured(config, row).inputs:
        return None
    work = sum((part.total for part in parts_of(row.name, config, facts)), Workload())
    if not work.llm > 0:  # nan if the tasks are uncounted
        return None
    try:
        rate = teacher_rate(teacher)
    except UsageError:
        return None
    width = teacher.max_conversations or WIDEST
    if facts.listed and not is_dotted(config.env.benchmark):
        benchmark = load_benchmark(config.env.benchmark, config.env.options)
        width = conversations_of(config.rollout, benchmark, replace(teacher, mode="auto"))
    return collection_plans(
        teacher,
        rate,
        TokenCounts(fresh=round(work.llm_in), output=round(work.llm_out)),
        requests=work.llm,
        episodes=work.episodes,
        turns=math.ceil(work.llm / work.episodes),
        width=width,
    ).line
