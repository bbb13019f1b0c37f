"""The examples of a benchmark, a teacher and a routed policy: their printed output comes from real episodes, which
replay."""

from __future__ import annotations

from examples import own_teacher, routed_policy
from examples.own_benchmark import Parcels
from examples.own_teacher import PRICE, Teacher, episodes_to_play, world
from r2v.envs.base import Benchmark
from r2v.llm.waves import Waves
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.session import play_many
from tests.replaying import replay


def test_the_benchmark_is_one_and_its_teacher_solves_it() -> None:
    assert isinstance(Parcels(), Benchmark)
    waves = Waves(workers=1)
    teacher = GreedyActor(PricedModel(waves.model(Teacher()), PRICE, "llm", 64), "teacher")
    episodes = play_many(waves, world(), episodes_to_play(10), teacher)
    assert all(episode.success and episode.total_cost > 0 for episode in episodes)
    tasks = {task.task_id: task for task in Parcels().tasks()}
    assert [replay(world(), episode, tasks[episode.metadata.task_id]) for episode in episodes] == [None] * 10


def test_malformed_actions_end_in_failure_and_not_in_an_exception() -> None:
    environment, task = Parcels().make(), Parcels().tasks()[0]
    environment.reset(seed=1, task=task)
    for _ in range(task.payload["parcels"]):
        _, _, terminated, _, info = environment.step("{ no call")
    assert terminated and info.success is False


def test_the_router_asks_for_some_steps_and_gains_by_it() -> None:
    rows = {name: (float(success), float(asked), float(cost)) for name, success, asked, cost in routed_policy.main(30)}
    small, routed, llm = rows["small model"], rows["routed"], rows["LLM"]
    assert small[1] == 0 < routed[1] < 0.5 < llm[1] == 1
    assert small[0] + 0.3 < routed[0] <= llm[0] and small[2] < routed[2] < llm[2] / 2
    assert own_teacher.Teacher.max_batch > 1
