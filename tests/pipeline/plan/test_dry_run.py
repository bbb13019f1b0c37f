"""The table that a dry run prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import Config, load
from r2v.pipeline.plan.benchmark_facts import facts_here, facts_of
from r2v.pipeline.plan.dry_run import COUNTS, TIMES, as_json, planned_work, table, time_table, warnings
from r2v.pipeline.plan.stage_parts import parts_of, plays_of_thresholds
from r2v.pipeline.plan.wall import Allotted, Seconds, world_seconds
from r2v.pipeline.plan.workload import Workload

WHOLE = (
    f"evaluation.methods=[{','.join(Config().evaluation.methods)}]",
    f"ablations.names=[{','.join(Config().ablations.names)}]",
    "evaluation.conditions=[clean,noisy,shift]",
    "evaluation.seeds=[1,2,3,4,5]",
    *(f"evaluation.{name}_tasks=60" for name in ("oracle", "frontier", "gains")),
)
"""A comparison of all methods, which takes more than a day."""
WEBARENA = load("configs/webarena/noisy.yaml", list(WHOLE))
KNOWN = facts_of(WEBARENA, None)
DAY = Allotted(cpus=8, gpus=1, card="a100", seconds=86400)


def test_webarenas_environment_hours_by_hand() -> None:
    """7 s a reset and 1.5 s a step: 40 s an episode of 22 steps, 25 s one of the teacher's 12. On 8 CPUs, of which each
    of 64 environments keeps .3 busy, 26.7 run side by side."""
    collected = planned_work("collect", WEBARENA, KNOWN, DAY)
    assert world_seconds(collected.work, KNOWN.pace) == 500 * 3 * (7 + 12 * 1.5)
    parts = {one.part.name: one for one in planned_work("evaluate", WEBARENA, KNOWN, DAY).parts}
    gains, main = parts["gains"], parts["main table"]
    assert gains.seconds.environment == pytest.approx(60 * 5 * 3 * 40 * (1 + 22 * 0.6) * 0.3 / 8)
    assert world_seconds(main.part.total, KNOWN.pace) == pytest.approx(163 * 5 * 3 * (9 * 40 + 25))


SHIPPED = load("configs/webarena/noisy.yaml")
_WEIGHTS, _COMPUTED = 8_030_261_248, 7_504_924_672
"""Parameters of Llama-3.1-8B: all, and all but the embedding, of which a token reads one row."""


def test_webarenas_candidates_by_hand() -> None:
    """At each of 22 steps 5 samples and the teacher's action, all scored, of which 2.5 are branched: the t-th of 22
    states leaves 21 - t further steps, the policy's, after an episode played again."""
    [part] = planned_work("candidates", SHIPPED, KNOWN, DAY).parts
    work, tasks = part.part.total, KNOWN.branched_of_split("train", 50)
    assert (work.episodes, work.branches) == (tasks, tasks * 22 * 2.5)
    assert work.student == pytest.approx(tasks * (22 * 2 + 2.5 * 22 * 21 / 2))
    assert work.drawn == pytest.approx(tasks * (22 * 6 + 2.5 * 22 * 21 / 2))
    assert (work.llm, work.verifier) == (tasks * 22, tasks * 22 * 6)
    assert work.resets == work.steps / 22 == tasks * (1 + 22 * 2.5)
    assert work.written == work.drawn * 60
    prompt = sum(min(16384 - 256, 1500 + 4000 * t + 60 * (t - 1)) for t in range(1, 23)) / 22
    assert work.read == pytest.approx((work.student + work.verifier) * prompt)
    read = 2 * _COMPUTED * (work.read + work.written) / (312e12 * 0.35)
    added = work.written / 64 * 2 * _WEIGHTS / (2.0e12 * 0.5)
    assert part.seconds.model == pytest.approx(read + added, rel=0.001)
    assert part.seconds.environment == pytest.approx((7 * work.resets + 1.5 * work.steps) * 0.3 / 8)


def test_webarenas_router_features_and_evaluation_by_hand() -> None:
    """A branch where the LLM acts differently, at .6 of the states; no router reads the verifier."""
    [features] = planned_work("router_features", SHIPPED, KNOWN, DAY).parts
    tasks = KNOWN.branched_of_split("train", 70) + KNOWN.branched_of_split("calibration", 15)
    work = features.part.total
    assert (work.episodes, work.branches) == (tasks, pytest.approx(tasks * 22 * 0.6))
    assert work.student == pytest.approx(tasks * (22 + 0.6 * 22 * 21 / 2))
    assert (work.llm, work.verifier) == (tasks * 22, 0)
    parts = {one.part.name: one.part.total for one in planned_work("evaluate", SHIPPED, KNOWN, DAY).parts}
    evaluated, budget = KNOWN.tasks["evaluation"], SHIPPED.router.budget
    main = parts["main table"]
    assert main.episodes == 4 * evaluated and main.verifier == 0
    assert main.student == 3 * evaluated * 22
    assert main.llm == pytest.approx(evaluated * (12 + 2 * min(10, budget * 22)))
    assert parts["thresholds"].episodes == 15 * (plays_of_thresholds(0) + plays_of_thresholds(1))
    assert parts["gains"].episodes == 30 < KNOWN.branched_of_split("evaluation", None)


def test_training_tokens_by_hand() -> None:
    """Rows of 16,384 tokens, times epochs, times folds: 500 tasks of three seeds and their noisy twins are cloned; of
    200 tasks an episode and its corruptions are learnt, by two verifiers' worth; a pair is two rows, and the reference
    reads each once."""
    longest, settings = 16384, SHIPPED
    twins = len(settings.data.perturbation_seeds.train) + settings.perturb.include_clean
    [bc] = parts_of("bc", settings, KNOWN)
    assert bc.total == Workload(trained=500 * 3 * twins * longest * 3)
    [verifier] = parts_of("verifier", settings, KNOWN)
    labels = settings.verifier
    rows = labels.num_tasks * (1 + labels.num_corruptions)
    assert verifier.total == Workload(trained=rows * longest * 2 * settings.candidates.num_folds)
    preference = parts_of("preference", settings, KNOWN)[0]
    rows = 2 * KNOWN.branched_of_split("train", 50) * settings.preference.max_pairs_per_task
    assert preference.total == Workload(trained=rows * longest * 2, read=rows * longest)
    few = load("configs/webarena/noisy.yaml", ["training.bc.max_examples=10", "verifier.label_sources=[td]"])
    assert parts_of("bc", few, KNOWN)[0].total.trained == 10 * longest * 3
    assert parts_of("verifier", few, KNOWN)[0].total.trained == 2 * verifier.total.trained, "values are learnt first"
    three = load("configs/webarena/noisy.yaml", ["data.perturbation_seeds.train=[1,2,3]"])
    assert parts_of("bc", three, KNOWN)[0].total.trained == 500 * 3 * 4 * longest * 3, "an episode and three twins"
    none = load("configs/webarena/noisy.yaml", ["preference.enabled=false"])
    assert parts_of("preference", none, KNOWN) == ()


def test_tasks_that_change_a_site_bound_the_wall_time() -> None:
    """374 of 812 tasks, one after another: the teacher needs no GPU, so it waits for the site set."""
    job = planned_work("collect", WEBARENA, KNOWN, DAY)
    [part] = job.parts
    assert part.part.alone == pytest.approx(230 / 500) and part.seconds.alone == job.wall
    assert part.seconds == Seconds(environment=690 * 25, llm=job.wall - 690 * 25, alone=job.wall)
    four = load("configs/webarena/noisy.yaml", ["rollout.sites=[a,b,c,d]"])
    assert planned_work("collect", four, KNOWN, DAY).wall == pytest.approx(job.wall / 4)
    [line] = warnings([planned_work("collect", WEBARENA, KNOWN, replace(DAY, seconds=3600))])
    assert line.endswith("or more of rollout.sites")


def test_an_ablation_study_is_the_sum_of_what_it_makes() -> None:
    one = planned_work("ablations", WEBARENA, KNOWN, DAY)
    assert {"evaluate main table", "router threshold", "candidates"} <= {part.part.name for part in one.parts}
    training = sum(part.seconds.wall for part in one.parts if part.part.total.trained)
    assert 0 < training < one.wall
    assert one.work.steps == pytest.approx(sum(part.part.total.steps for part in one.parts))


def test_a_job_that_is_too_long_and_a_unit_that_never_ends_are_told_with_their_remedies() -> None:
    long = planned_work("evaluate", WEBARENA, KNOWN, DAY)
    assert long.too_long and not long.never_kept
    [line] = warnings([long])
    assert line.startswith("evaluate: about ") and "under --time=24.0 h" in line and "evaluation." in line
    short = planned_work("evaluate", WEBARENA, KNOWN, replace(DAY, seconds=600))
    lines = warnings([short])
    assert any("one task of gains takes about" in line and "it never does; fewer:" in line for line in lines)
    free = planned_work("evaluate", WEBARENA, KNOWN, replace(DAY, seconds=None))
    assert not free.too_long and warnings([free]) == []


def test_the_table_has_a_row_for_each_job_and_part_and_says_what_it_rests_on() -> None:
    jobs = [planned_work(name, WEBARENA, KNOWN, DAY) for name in ("collect", "bc", "evaluate")]
    lines = table(jobs, WEBARENA, KNOWN)
    assert lines[0].split()[:3] == list(COUNTS[:3])
    parts = ("thresholds", "main", "oracle_router", "frontier", "gains")
    rows = ["job", "collect", "bc", "evaluate", *parts, "all"]
    counts, rest = lines[: lines.index("")], lines[lines.index("") + 1 :]
    times = rest[: rest.index("")]
    assert [line.split()[0] for line in counts] == [line.split()[0] for line in times] == rows
    assert times[0].split() == [word for column in TIMES if column != "helpers" for word in column.split()]
    text = "\n".join(lines)
    for said in (
        "163 evaluation (estimated",
        "assumed: ",
        "list price of gpt-6.1-terra",
        "at most (",
    ):
        assert said in text, said
    assert "unknown" in "\n".join(table(jobs[:1], replace_model(), KNOWN)), "a model without a price"


def replace_model() -> object:
    return replace(WEBARENA, teacher=replace(WEBARENA.teacher, model_name="gpt-of-tomorrow"))


def test_a_machine_without_gpus_or_limits_has_no_columns_of_them() -> None:
    config = load("configs/mrp.yaml")
    jobs = [planned_work(name, config, KNOWN, Allotted(cpus=2)) for name in ("collect", "bc")]
    assert time_table(jobs)[0].split() == ["job", "CPUs", "workers", "model", "environment", "wall"]


@pytest.mark.parametrize("name", ["models/mine", "nobody/nothing"])
def test_a_model_that_is_nowhere_is_the_reason_for_unknown_times(name: str) -> None:
    config = load(None, [f"policy.model_name={name}"])
    jobs = [planned_work("bc", config, KNOWN, Allotted(gpus=1))]
    [line] = [line for line in table(jobs, config, KNOWN) if line.startswith("times are unknown")]
    assert f"policy.model_name: no config.json of {name}: not a directory with one" in line
    of_a_known_one = table([planned_work("bc", WEBARENA, KNOWN, DAY)], WEBARENA, KNOWN)
    assert not any(line.startswith("times are unknown") for line in of_a_known_one)


def test_the_bundled_pipeline_is_minutes_and_costs_nothing() -> None:
    config = load("configs/mrp.yaml")
    known = facts_here(config)
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
    rows = jobs[2].work.trained / config.policy.max_seq_len / config.training.phase("bc").num_epochs
    assert jobs[2].work == Workload(trained=jobs[2].work.trained) and rows == round(rows)


def test_a_count_above_its_split_is_told() -> None:
    above = load("configs/webarena/noisy.yaml", ["data.num_episodes=5000"])
    [said] = [line for line in table([planned_work("collect", above, KNOWN, DAY)], above, KNOWN) if "=5000" in line]
    assert said == "data.num_episodes=5000: there are 568 tasks in the train split; all of them are played"


def test_work_that_is_not_counted_is_a_question_mark_to_the_last_column() -> None:
    """Hierarchical training, and a job of unknown counts beside counted ones; a model of unknown size is `unknown`."""
    jobs = [planned_work(name, WEBARENA, KNOWN, DAY) for name in ("collect", "hierarchical")]
    lines = table(jobs, WEBARENA, KNOWN)
    counts, times = ([line.split() for line in lines if line.startswith(name)] for name in ("hierarchical", "all"))
    assert counts == [["hierarchical", *["?"] * 8], ["hierarchical", "8", "1", "a100", *["?"] * 4, "24.0", "h", "?"]]
    assert times == [["all", *["?"] * 8], ["all", *["?"] * 5]]
    assert as_json(jobs[1])["seconds"]["wall"] is None and not jobs[1].too_long
    unknown = replace(WEBARENA, policy=replace(WEBARENA.policy, model_name="nobody/knows-this"))
    [_, row, *_] = time_table([planned_work("bc", unknown, KNOWN, DAY)])
    assert row.split()[4:] == ["unknown", "unknown", "24.0", "h", "unknown"]
