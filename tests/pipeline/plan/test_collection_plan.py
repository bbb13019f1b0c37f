"""The line with both plans appears for a collection with a paid teacher, and for nothing else."""

from __future__ import annotations

from r2v.config import load
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.benchmark_facts import facts_here
from r2v.pipeline.plan.collection_plan import collection_line
from r2v.pipeline.plan.dry_run import planned_jobs, table
from r2v.pipeline.plan.wall import Allotted

PAID = ["teacher.provider=openai", "teacher.model_name=gpt-5.2"]


def line(name: str, *words: str) -> str | None:
    config = load(None, list(words))
    return collection_line(job(name), config, facts_here(config))


def test_a_collection_by_a_paid_teacher_has_both_plans() -> None:
    told = line("collect", *PAID)
    assert told is not None and " batches=$" in told and " direct=$" in told and "chosen=batches" in told
    dear = line("collect", *PAID, "teacher.waiting_usd_per_hour=100")
    assert dear is not None and "chosen=direct" in dear and dear.endswith("setting=teacher.waiting_usd_per_hour=100")


def test_no_other_job_has_them_and_no_collection_without_a_price() -> None:
    assert line("collect") is None, "the benchmark's own expert is free"
    assert line("candidates", *PAID) is None
    assert line("collect", "teacher.provider=openai", "teacher.model_name=gpt-of-tomorrow") is None


def test_a_plan_of_the_chain_shows_them() -> None:
    config = load(None, PAID)
    known = facts_here(config)
    jobs = planned_jobs(config, known, dict.fromkeys(("collect", "candidates"), Allotted()))
    assert [row for row in table(jobs, config, known) if row.startswith("collection plan")] == [line("collect", *PAID)]
