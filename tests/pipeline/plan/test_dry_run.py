"""The table that a dry run prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import Config, load
from r2v.pipeline.plan.dry_run import HEAD, planned_work, table, warnings
from r2v.pipeline.plan.known import known_here, known_of
from r2v.pipeline.plan.stage_parts import parts_of
from r2v.pipeline.plan.wall import Allotted, training_seconds
from r2v.pipeline.plan.workload import Workload

WHOLE = (
    f"evaluation.methods=[{','.join(Config().evaluation.methods)}]",
    f"ablations.names=[{','.join(Config().ablations.names)}]",
    "evaluation.conditions=[clean,noisy,shift]",
    "evaluation.seeds=[1,2,3,4,5]",
    *(f"evaluation.{name}_tasks=60" for name in ("oracle", "frontier", "gains")),
)
"""A comparison of everything, which is more than a day's work."""
WEBARENA = load("configs/webarena/noisy.yaml", list(WHOLE))
KNOWN = known_of(WEBARENA, None)
DAY = Allotted(cpus=8, gpus=1, card="a100", seconds=86400)


def test_webarenas_world_hours_by_hand() -> None:
    """7 s a reset and 1.5 s a step: 40 s an episode of 22 steps, 25 s one of the teacher's 12."""
    job = planned_work("collect", WEBARENA, KNOWN, DAY)
    assert job.world_seconds == 500 * 3 * (7 + 12 * 1.5) and job.usd == pytest.approx(
        sum(one.usd or 0 for one in job.parts)
    )
    parts = {one.name: one for one in planned_work("evaluate", WEBARENA, KNOWN, DAY).parts}
    played = 163 * 5 * 3
    assert parts["gains"].world_seconds == pytest.approx(60 * 5 * 3 * 40 * (1 + 22 * 0.6))
    assert parts["main table"].world_seconds == pytest.approx(played * (8 * 40 + 25))
    assert not training_seconds("evaluate", WEBARENA, DAY) < 0 < planned_work("bc", WEBARENA, KNOWN, DAY).training


def test_tasks_that_change_a_site_bound_the_wall_time() -> None:
    """374 of 812 tasks, one after another: the teacher asks nothing of the GPU, so it waits for the site set."""
    job = planned_work("collect", WEBARENA, KNOWN, DAY)
    [part] = job.parts
    assert part.part.alone == pytest.approx(230 / 500) and part.seconds.alone == job.wall > part.seconds.worlds
    four = load("configs/webarena/noisy.yaml", ["rollout.sites=[a,b,c,d]"])
    assert planned_work("collect", four, KNOWN, DAY).wall == pytest.approx(job.wall / 4)
    [line, _] = warnings([planned_work("collect", WEBARENA, KNOWN, replace(DAY, seconds=3600))])
    assert line.endswith("or more of rollout.sites")


def test_an_ablation_study_is_the_sum_of_what_it_makes() -> None:
    one = planned_work("ablations", WEBARENA, KNOWN, DAY)
    assert {"evaluate main table", "router threshold", "candidates"} <= {part.name for part in one.parts}
    assert one.training > 0 and one.wall > one.training
    assert one.work.steps == pytest.approx(sum(part.part.total.steps for part in one.parts))


def test_a_job_that_is_too_long_and_a_unit_that_never_ends_are_told_with_their_remedies() -> None:
    long = planned_work("evaluate", WEBARENA, KNOWN, DAY)
    assert long.too_long and not long.never_kept
    [line, _] = warnings([long])
    assert line.startswith("evaluate: about ") and "under --time=24 h 00 min" in line and "evaluation." in line
    short = planned_work("evaluate", WEBARENA, KNOWN, replace(DAY, seconds=600))
    lines = warnings([short])
    assert any("one task of gains takes about" in line and "it never does; fewer:" in line for line in lines)
    free = planned_work("evaluate", WEBARENA, KNOWN, replace(DAY, seconds=None))
    assert not free.too_long and warnings([free]) == []


def test_the_table_has_a_row_for_each_job_and_part_and_says_what_it_rests_on() -> None:
    jobs = [planned_work(name, WEBARENA, KNOWN, DAY) for name in ("collect", "bc", "evaluate")]
    lines = table(jobs, WEBARENA, KNOWN)
    assert lines[0].split()[:3] == list(HEAD[:3])
    rows = [line.split()[0] for line in lines[: lines.index("")]]
    assert rows == [
        "job",
        "collect",
        "bc",
        "evaluate",
        "thresholds",
        "main",
        "oracle_router",
        "frontier",
        "gains",
        "all",
    ]
    text = "\n".join(lines)
    for said in (
        "163 evaluation (estimated",
        "assumed: ",
        "list price of gpt-6.1-terra",
        "64 worlds at a time",
        "at most (",
    ):
        assert said in text, said
    assert "unknown" in "\n".join(table(jobs[:1], replace_model(), KNOWN)), "a model without a price"


def replace_model() -> object:
    return replace(WEBARENA, teacher=replace(WEBARENA.teacher, model_name="gpt-of-tomorrow"))


def test_the_bundled_pipeline_is_minutes_and_costs_nothing() -> None:
    config = load("configs/mrp.yaml")
    known = known_here(config)
    names = (
        "collect",
        "perturb",
        "bc",
        "verifier",
        "candidates",
        "preference",
        "router_features",
        "router",
        "evaluate",
    )
    jobs = [planned_work(name, config, known, Allotted()) for name in names]
    assert sum(one.wall for one in jobs) < 3600 * 3 and all(one.usd == 0 for one in jobs)
    assert parts_of("bc", config, known) == () and jobs[2].work == Workload() and jobs[2].training > 0


def test_a_count_above_its_split_is_told() -> None:
    above = load("configs/webarena/noisy.yaml", ["data.num_episodes=5000"])
    [said] = [line for line in table([planned_work("collect", above, KNOWN, DAY)], above, KNOWN) if "=5000" in line]
    assert said == "data.num_episodes=5000: there are 568 tasks in the train split; all of them are played"
