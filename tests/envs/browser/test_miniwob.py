"""MiniWoB++ in a real Chromium: rewards, faults, replay, and no leftover processes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.config import PerturbationsConfig
from r2v.config.tasks import CategoryConfig
from r2v.envs.base import Task, load_benchmark
from r2v.envs.browser.chromium import find_chromium, require_extra
from r2v.envs.browser.miniwob import MiniWoB
from r2v.envs.browser.miniwob_tasks import CONTINUOUS, MINIWOB_TASKS, is_solved
from r2v.envs.guard import GuardedEnv
from r2v.errors import UsageError
from r2v.llm.types import Request
from r2v.perturb import wrap
from r2v.wire.message import Message
from tests.envs.browser import real_browser
from tests.envs.remembered import Remembered

GOLDEN = Path(__file__).parent / "perturbed_pages.json"


@pytest.fixture(scope="module")
def miniwob() -> Iterator[MiniWoB]:
    benchmark = MiniWoB(names="click-button enter-text login-user", instances=4)
    yield benchmark
    benchmark.pool.close()


def task_of(benchmark: MiniWoB, template: str) -> Task:
    return next(task for task in benchmark.tasks() if task.template_id == f"miniwob.{template}")


def play(benchmark: MiniWoB, task: Task, seed: int, actions: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Play the expert, or these actions; return the observations and actions, the end last."""
    world = benchmark.make()
    observation, info = world.reset(seed=seed, task=task)
    assert info.env_fault is None
    seen, done, ended = [observation], [], False
    while not ended and len(done) < 8:
        messages = (Message(role="user", content=task.goal), Message(role="tool", content=observation))
        done.append(actions[len(done)] if actions else benchmark.expert(Request(messages=messages, key=())))
        observation, reward, terminated, truncated, info = world.step(done[-1])
        ended = terminated or truncated
        seen.append(observation)
    world.close()
    return [*seen, f"{ended} {reward} {info.success} {info.env_fault}"], done


@real_browser
def test_experts_succeed_and_their_actions_replay_to_the_same_pages(miniwob: MiniWoB) -> None:
    for task in miniwob.tasks()[:3]:
        seen, done = play(miniwob, task, seed=7)
        assert seen[-1] == "True 1.0 True None"
        assert play(miniwob, task, seed=7, actions=done) == (seen, done)
    assert play(miniwob, task, seed=8)[0][0] != seen[0]


@real_browser
def test_a_wrong_click_ends_without_success_and_a_bad_call_is_told_on_the_page(miniwob: MiniWoB) -> None:
    world = miniwob.make()
    observation, _ = world.reset(seed=1, task=task_of(miniwob, "enter-text"))
    assert observation.startswith('goal: Enter "') and "\n  [14] textbox ''" in observation
    for action in ('{"tool":"click","bid":"999"}', "click it", '{"tool":"goto","url":"file:///etc/passwd"}', "[1]"):
        observation, reward, terminated, truncated, info = world.step(action)
        assert observation.split("\n")[1].startswith("error: ") and info.is_error
        assert (reward, terminated, truncated, info.env_fault) == (0.0, False, False, None)
    observation, reward, terminated, _, info = world.step('{"tool":"click","bid":"15"}')
    assert (reward, terminated, info.success, info.env_fault) == (0.0, True, False, None)
    world.close()


@real_browser
def test_partial_credit_of_the_authors_is_no_success_and_coordinates_can_be_clicked() -> None:
    benchmark = MiniWoB(names="click-checkboxes click-test find-greatest", instances=3, coordinates=True)
    world, outcomes = benchmark.make(), []
    for task in benchmark.tasks():
        page, _ = world.reset(seed=1, task=task)
        cards = {int(number): bid for bid, number in re.findall(r"\[(\d+)\] StaticText '(\d+)'", page)}
        if task.template_id == "miniwob.find-greatest":
            world.step(json.dumps({"tool": "click", "bid": str(int(cards[min(cards)]) - 1)}))
        x, y = re.search(r"button '.*', .*center=\"\((\d+),(\d+)\)\"", page).groups()  # type: ignore[union-attr]
        *_, info = world.step(json.dumps({"tool": "mouse_click", "x": int(x), "y": int(y)}))
        outcomes.append((str(task.template_id).removeprefix("miniwob."), info.success, info.partial_score))
    benchmark.pool.close()
    assert [success for name, success, _ in outcomes if name == "click-test"] == [True] * 3
    assert [outcome for outcome in outcomes if outcome[0] == "find-greatest"] == [("find-greatest", False, 0.1)] * 3
    boxes = [(success, score) for name, success, score in outcomes if name == "click-checkboxes"]
    assert all(not success for success, _ in boxes) and any(score > 0 for _, score in boxes)


@pytest.mark.parametrize(
    ("task", "goal", "element", "solved"),
    [
        ("click-checkboxes", "Select nothing and click Submit.", "[14] checkbox 'a'", True),
        ("click-checkboxes", "Select b and click Submit.", "[14] checkbox 'a'", False),
        ("click-button", 'Click on the "Submit" button.', "[14] button 'Submit'", True),
        ("choose-list", "Select Alma from the list and click Submit.", "[14] combobox '' value='Alma'", True),
        ("choose-list", "Select Alma from the list and click Submit.", "[14] combobox '' value='Al'", False),
        ("drag-cube", "Move the cube.", "[14] button 'Submit'", True),
    ],
)
def test_a_page_that_begins_solved_is_listed_and_can_be_submitted(
    task: str, goal: str, element: str, solved: bool
) -> None:
    listed = MiniWoB(names=task, instances=1)
    page = f"goal: {goal}\nRootWebArea 'Task'\n  {element}\n  [20] button 'Submit'"
    assert listed.begins_solved(listed.tasks()[0], page) is solved
    pressed = listed.players()["empty"](Request(messages=(Message(role="tool", content=page),), key=()))
    assert json.loads(pressed)["tool"] == "click"


def test_a_full_reward_is_success_and_distances_have_a_threshold() -> None:
    assert is_solved("odd-or-even", 3 * (1 / 3)) and is_solved("hot-cold", 1) and not is_solved("hot-cold", 0.5)
    assert is_solved("circle-center", 0.93) and not is_solved("circle-center", 0.6)
    assert not is_solved("find-greatest", 0.93) and not is_solved("use-colorwheel", -1)
    assert set(CONTINUOUS) < set(MINIWOB_TASKS)


def browser_of(process: int) -> int:
    """Return the Chromium below a worker that has no Chromium above it. Process numbers wrap around, so the smallest
    one may be a renderer's."""
    ancestors, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().rpartition(")")
        except OSError:
            continue
        ancestors[int(stat.parent.name)], names[int(stat.parent.name)] = int(fields.split()[1]), name.partition("(")[2]
    below = []
    for candidate, name in names.items():
        above = ancestors[candidate]
        while above not in (0, 1, process):
            above = ancestors.get(above, 0)
        if above == process and name.startswith("chrom"):
            below.append(candidate)
    (browser,) = [process for process in below if ancestors[process] not in below and "crashpad" not in names[process]]
    return browser


@real_browser
def test_a_browser_that_is_killed_is_a_fault_and_the_next_episode_has_another(miniwob: MiniWoB) -> None:
    world = miniwob.make()
    task = task_of(miniwob, "click-button")
    world.reset(seed=1, task=task)
    assert world._worker is not None
    worker = world._worker.pid
    os.kill(browser_of(worker), signal.SIGKILL)
    info = world.step('{"tool":"click","bid":"12"}')[4]
    assert info.env_fault is not None and info.env_fault.startswith("step: ") and info.success is None
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    assert world.reset(seed=1, task=task)[1].env_fault is None
    world.close()


@real_browser
def test_a_page_that_is_not_there_is_a_fault_of_the_site(miniwob: MiniWoB) -> None:
    lost = Task(task_id="lost", goal="lost", payload={"id": "browsergym/miniwob.no-such-task"})
    world = miniwob.make()
    fault = world.reset(seed=1, task=lost)[1].env_fault
    assert fault is not None and "no-such-task" in fault
    world.close()


@real_browser
def test_every_perturbation_shows_what_was_recorded(miniwob: MiniWoB) -> None:
    """`R2V_RECORD=1` records the golden pages again."""
    task = task_of(miniwob, "login-user")
    real = GuardedEnv(miniwob)
    played, pages = Remembered(real), {}
    for name in PerturbationsConfig.categories():
        off = {other: CategoryConfig(prob=0.0) for other in PerturbationsConfig.categories()}
        config = PerturbationsConfig(**{**off, name: CategoryConfig(prob=1.0)}, held_out=[])
        world = wrap(played, miniwob, config, "noisy", 901)
        shown = [world.reset(seed=5, task=task)[0]]
        for action in ('{"tool":"fill","bid":"16","value":"x"}', '{"tool":"click","bid":"17"}'):
            observation, *_, info = world.step(action)
            shown.append(observation)
            assert info.env_fault is None
        pages[name] = {"goal": getattr(world, "goal", task.goal), "pages": shown, "seconds": info.sim_seconds}
    real.close()
    if os.environ.get("R2V_RECORD"):
        GOLDEN.write_text(json.dumps(pages, indent=1, ensure_ascii=False) + "\n")
    assert pages == json.loads(GOLDEN.read_text())


@real_browser
def test_any_id_of_browsergym_is_a_benchmark() -> None:
    benchmark = load_benchmark("browser", {"ids": "browsergym/miniwob.click-test", "instances": 2})
    assert [task.task_id for task in benchmark.tasks()] == ["miniwob.click-test.0", "miniwob.click-test.1"]
    world = benchmark.make()
    observation, _ = world.reset(seed=1, task=benchmark.tasks()[0])
    assert observation.startswith("goal: Click the button.\ntab 0 (active): Click Test Task file://")
    assert world.step('{"tool":"click","bid":"13"}')[4].success is True
    world.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("miniwob", {"names": "scriptet"}, "did you mean scripted"),
        ("miniwob", {"names": ["click-test"]}, "expected a text with at least one name"),
        ("miniwob", {"names": "click-test click-buton"}, "did you mean click-button"),
        ("miniwob", {"names": "click-test,click-test"}, "each of them once"),
        ("miniwob", {"instances": 0}, "env.options.instances"),
        ("browser", {}, "env.options.ids: got ''"),
        ("browser", {"ids": "miniwob.click-test"}, "is no id of BrowserGym"),
        (
            "browser",
            {"ids": "browsergym/nowhere.1"},
            "browsergym.nowhere is not installed; pip install browsergym-nowhere",
        ),
    ],
)
def test_what_is_asked_for_wrongly_is_told_in_a_line(spec: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_benchmark(spec, options)


def test_no_browser_and_no_extra_are_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="install Debian's package chromium"):
        find_chromium()
    monkeypatch.setenv("R2V_BROWSER", "/nowhere/chrome")
    with pytest.raises(UsageError, match="R2V_BROWSER=/nowhere/chrome: not a program"):
        find_chromium()
    with pytest.raises(UsageError, match=r"pip install -e '.\[miniwob\]'"):
        require_extra("miniwob", "browsergym.nothing")
