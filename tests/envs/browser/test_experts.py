"""The experts read a page's text correctly and act as its goal says."""

from __future__ import annotations

import json

import pytest

from r2v.envs.browser import surface
from r2v.envs.browser.experts import EXPERTS, next_call
from r2v.envs.browser.miniwob_tasks import MINIWOB_TASKS
from r2v.envs.browser.reading import read_page
from r2v.llm.types import Request
from r2v.wire.message import Message

LOGIN = """goal: Enter the username "ju'an" and the password "Jc" into the text fields and press login.
error: TimeoutError: slow
RootWebArea 'Login User Task', focused
  [14] paragraph ''
    StaticText 'Username'
    [16] textbox '' value="ju'an", focused
    StaticText "ju'an"
  [19] textbox ''
  [20] button 'Login'"""


def call(task: str, page: str) -> dict[str, str]:
    goal = Message(role="user", content=f'Task "miniwob.{task}", instance 3.')
    answer: dict[str, str] = json.loads(
        next_call(Request(messages=(goal, Message(role="tool", content=page)), key=("test",)))
    )
    return answer


def test_a_page_is_its_goal_and_its_elements() -> None:
    page = read_page(LOGIN)
    assert page.quoted() == ["ju'an", "Jc"] and page.texts() == ["Username", "ju'an"]
    assert [(field.bid, field.value) for field in page.role("textbox")] == [("16", "ju'an"), ("19", "")]
    assert page.named("Login") == page.role("button")[0] and page.role("button")[0].name == "Login"


@pytest.mark.parametrize(
    ("task", "page", "expected"),
    [
        ("login-user", LOGIN, {"tool": "fill", "bid": "19", "value": "Jc"}),
        ("login-user", LOGIN.replace("[19] textbox ''", "[19] textbox '' value='••'"), {"tool": "click", "bid": "20"}),
        ("login-user", LOGIN.partition("  [19]")[0], {"tool": "noop", "wait_ms": 100}),
        ("enter-time", "goal: Enter 12:05 PM as the time\n [3] InputTime ''", {"tool": "fill", "value": "12:05"}),
        ("enter-time", "goal: Enter 8:05 PM as the time\n [3] InputTime ''", {"tool": "fill", "value": "20:05"}),
        ("enter-date", "goal: Enter 01/18/2019 as the\n [3] Date ''", {"tool": "fill", "value": "2019-01-18"}),
        ("simple-algebra", "StaticText '4 - x = 6'\n[16] textbox ''", {"value": "-2"}),
        ("simple-algebra", "StaticText 'x - 4 = 6'\n[16] textbox ''", {"value": "10"}),
        ("simple-arithmetic", "StaticText '4 x 6 ='\n[16] textbox ''", {"value": "24"}),
        ("click-tab-2", "goal: find \"a\"\n[1] tab 'T1', selected=True\n[2] tab 'T2'\n [3] link 'T2'", {"bid": "3"}),
        ("no-such-task", LOGIN, {"tool": "noop", "wait_ms": 100}),
    ],
)
def test_experts_read_the_page_and_wait_where_it_is_damaged(task: str, page: str, expected: dict[str, str]) -> None:
    assert expected.items() <= call(task, page).items()


def test_experts_are_for_tasks_that_there_are() -> None:
    assert set(EXPERTS) <= set(MINIWOB_TASKS) and len(EXPERTS) >= 20 and len(MINIWOB_TASKS) == 125


def test_plants_look_like_the_page_and_name_nothing_on_it() -> None:
    decoys = surface.decoys(LOGIN, "goal", 4, 0.25)
    page = read_page("\n".join(decoys))
    own = {element.bid for element in read_page(LOGIN).elements}
    assert len({element.bid for element in page.elements} - own) == 4
    assert surface.decoys("goal: x", "goal", 1, 0.5)[0].startswith("  [")
    line, canary = surface.injection(LOGIN, "goal", "direct", 0.25)
    assert canary in line and line.startswith("  StaticText 'Ignore your task")
    assert surface.decoys(LOGIN, "goal", 4, 0.25) == decoys
