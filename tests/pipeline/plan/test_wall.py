"""Wall time: environments, models and the LLM under the resources of a job."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from r2v.config import load
from r2v.envs.pace import Pace
from r2v.memory.models import counted
from r2v.memory.seconds import StageTokens, seconds_of
from r2v.pipeline.plan.wall import (
    BUNDLED_SECONDS,
    Allotted,
    time_of,
    unit_seconds,
    world_seconds,
)
from r2v.pipeline.plan.workload import Workload

PACE = Pace(reset_seconds=5, step_seconds=1.5, cpu_share=0.25)
LLAMA = "policy.model_name=meta-llama/Llama-3.1-8B-Instruct"


def test_worlds_go_side_by_side_as_far_as_the_cpus_keep_up() -> None:
    work = Workload(resets=100, steps=1000)
    assert world_seconds(work, PACE) == 2000
    two = time_of(work, load(None, ["rollout.workers=2"]), PACE, Allotted(cpus=8))
    assert two.environment == two.wall == 1000
    many = time_of(work, load(None, ["rollout.workers=64"]), PACE, Allotted(cpus=8))
    assert many.environment == pytest.approx(2000 / 32), "64 worlds that keep a quarter of a CPU each need 16"
    auto = time_of(work, load(None), PACE, Allotted(cpus=64))
    assert auto.environment == pytest.approx(2000 / 64), "a conversation each, for they wait"
    busy = time_of(work, load(None), replace(PACE, cpu_share=1.0), Allotted(cpus=5))
    assert busy.environment == pytest.approx(2000 / 5), "a CPU each, for they compute"
    assert unit_seconds(work, load(None), PACE, Allotted()).wall == 2000


def test_the_llm_answers_side_by_side() -> None:
    config = load(
        None,
        [
            "teacher.provider=openai",
            "teacher.model_name=gpt-6-luna",
            "teacher.max_concurrent=10",
            LLAMA,
            "profile=lora-8b",
        ],
    )
    each = config.cost.llm_price.seconds_per_call + config.cost.llm_price.seconds_per_token * PACE.action_tokens
    assert time_of(Workload(llm=100), config, PACE, Allotted()).llm == pytest.approx(10 * each)
    assert unit_seconds(Workload(llm=100), config, PACE, Allotted()).wall == pytest.approx(100 * each)
    assert time_of(Workload(llm=100), load(None), PACE, Allotted()).llm == 0


def test_helpers_share_what_is_played_and_no_training() -> None:
    work, config = Workload(resets=100, steps=1000, student=10, drawn=10), load(None, ["rollout.workers=2"])
    alone = time_of(work, config, PACE, Allotted())
    for blocks, share in ((1, 1), (3, 1 / 3), (4, 1 / 4), (5, 2 / 5), (400, 1 / 4)):
        helped = time_of(work, config, PACE, Allotted(helpers=3), blocks=blocks)
        assert helped.wall == pytest.approx(alone.wall * share), f"{blocks} blocks by four processes"
    assert unit_seconds(work, config, PACE, Allotted(helpers=3)) == unit_seconds(work, config, PACE, Allotted())
    training = Workload(trained=1e6)
    assert time_of(training, config, PACE, Allotted(helpers=3)) == time_of(training, config, PACE, Allotted())


def test_what_changes_a_shared_world_is_played_alone_on_each_site_set() -> None:
    work, config = Workload(resets=100, steps=1000), load(None, ["rollout.workers=64"])
    half = time_of(work, config, PACE, Allotted(cpus=64, helpers=7), blocks=100, alone=0.5)
    assert half.alone == half.wall == 1000, "half of 2000 s, whoever helps"
    sites = load(None, ["rollout.workers=64", "rollout.sites=[a,b,c,d]"])
    assert time_of(work, sites, PACE, Allotted(cpus=64), alone=0.5).alone == 250
    none = time_of(work, config, PACE, Allotted(cpus=64))
    assert none.alone == 0 and (none + half).alone == 1000


def test_local_models_take_what_the_planner_estimates() -> None:
    config = load(None, [LLAMA, "profile=lora-8b"])
    work = Workload(student=100, drawn=100, verifier=50, read=1e6, written=6400)
    tokens = StageTokens(read=1e6 + 6400, waves=6400 / config.rollout.rows)
    shape = counted(config.policy.model_name)
    acting = time_of(work, config, PACE, Allotted(gpus=1, card="h100"))
    assert acting.model == acting.wall == pytest.approx(seconds_of(tokens, shape, card="h100"))
    assert time_of(work, load(None), PACE, Allotted()).model == pytest.approx(150 * BUNDLED_SECONDS)
    one, two = (time_of(Workload(trained=1e6), config, PACE, Allotted(gpus=gpus)).model for gpus in (1, 2))
    assert one == 2 * two == pytest.approx(seconds_of(StageTokens(trained=1e6), shape, checkpointing=True))
    rows = Workload(trained=50.0 * load(None).policy.max_seq_len)
    assert time_of(rows, load(None), PACE, Allotted()).model == pytest.approx(50 * BUNDLED_SECONDS)


def test_questions_that_are_remembered_take_no_time() -> None:
    pace, work = replace(PACE, remembered=0.75), Workload(student=100, drawn=100, steps=10)
    apart, shared = (time_of(work, load(None), pace, Allotted(), shared=one) for one in (False, True))
    assert shared.model == pytest.approx(apart.model / 4) and shared.environment == apart.environment


def test_a_model_of_unknown_size_takes_no_known_time() -> None:
    config = load(None, ["policy.model_name=nobody/knows-this", "profile=lora-8b"])
    assert math.isnan(time_of(Workload(trained=1), config, PACE, Allotted()).wall)
    assert math.isnan(time_of(Workload(student=1), config, PACE, Allotted()).wall)
    assert time_of(Workload(steps=1), config, PACE, Allotted()).wall > 0
