"""The official tasks as R2V's: unique goals, the tasks that change a site, and refusals in a line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from r2v.envs.base import load_benchmark
from r2v.envs.browser.tools import ANSWERING, ON_PAGE, ON_THE_WEB
from r2v.envs.webarena.addresses import PUBLIC_NAMES, site_set
from r2v.envs.webarena.benchmark import WebArena
from r2v.errors import UsageError
from tests.envs.webarena import listed

JUDGE = {"provider": "openai", "model_name": "gpt-6.1-terra"}


@listed
def test_there_are_812_with_goals_of_their_own() -> None:
    tasks = WebArena(judge=JUDGE).tasks()
    assert [task.task_id for task in tasks] == [f"webarena.{id_}" for id_ in range(812)]
    assert len({task.goal for task in tasks}) == 812 and len({task.template_id for task in tasks}) == 190
    assert sum(task.mutates for task in tasks) == 374 and not any("__" in task.goal for task in tasks)
    assert len(WebArena(judged=False).tasks()) == 812 - 118
    assert [task.task_id for task in WebArena(tasks="7, 377").tasks()] == ["webarena.7", "webarena.377"]
    assert WebArena(judge="openai:gpt-6.1-terra").tasks() == tasks
    of_map = WebArena(sites=["map"], judged=False).tasks()
    assert of_map and all(task.payload["sites"] == ["map"] for task in of_map)


@listed
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tasks": [7, 812]}, "env.options.tasks: no task 812; WebArena's are 0 to 811"),
        ({"tasks": 7}, "env.options.tasks=7: give a list"),
        ({"tasks": "7 x"}, "env.options.tasks: no task"),
        ({"judge": "openai"}, "env.options.judge='openai': name a model"),
        ({"sites": ["mop"]}, "no site 'mop'; allowed: shopping, "),
        ({"tasks": [7, 8]}, "1 of 2 tasks have answers that a model judges"),
        ({"judge": {"provider": "openai"}}, "env.options.judge=.*name a model"),
        ({"judge": {"provider": "scripted", "model_name": "x"}}, "a judge needs an LLM"),
        ({"judge": {**JUDGE, "colour": "red"}}, "env.options.judge: .*colour"),
        ({"reset": "always"}, "allowed: auto, never"),
        ({"tasks": [7], "sites": ["reddit"]}, "no task has sites of reddit alone"),
    ],
)
def test_what_cannot_be_played_is_refused_in_a_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_benchmark("webarena", options).tasks()


def test_without_the_child_interpreter_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert not WebArena.listed_here()
    for fails in (WebArena.require_set_up, WebArena().require_here, WebArena().tasks):
        with pytest.raises(UsageError, match="run `r2v webarena install`"):
            fails()


def test_a_missing_or_wrong_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for site in PUBLIC_NAMES:
        monkeypatch.delenv(f"WA_{site.upper()}", raising=False)
    with pytest.raises(UsageError, match="WA_SHOPPING, WA_MAP not set"):
        site_set(None, ["map", "shopping"])
    monkeypatch.setenv("WA_MAP", "host:3000")
    with pytest.raises(UsageError, match="WA_MAP=host:3000: an address begins with http"):
        site_set(None, ["map"])


@listed
def test_sites_that_a_task_needs_are_asked_for_before_a_run_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2V_BROWSER", sys.executable)
    for site in PUBLIC_NAMES:
        monkeypatch.delenv(f"WA_{site.upper()}", raising=False)
    monkeypatch.setenv("WA_SHOPPING", "http://host:7770")
    with pytest.raises(UsageError, match="WA_MAP not set"):
        WebArena(tasks=[7, 118]).require_here()
    WebArena(tasks=[118]).require_here()
    monkeypatch.setenv("WA_B_MAP", "http://host:3000")
    WebArena(tasks=[7]).require_here()  # rollout.sites=[b]: checked when the set is taken


def test_an_agent_has_the_calls_of_browsergyms_webarena() -> None:
    wanted = "click fill select_option scroll hover press goto go_back new_tab tab_focus tab_close"
    names = {tool.name for tool in (*ON_PAGE, *ON_THE_WEB, *ANSWERING)}
    assert names >= {*wanted.split(), "send_msg_to_user", "report_infeasible"}
