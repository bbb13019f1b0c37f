"""Right and wrong answers of every kind of evaluator, graded by the official package on sites built from the tasks' own
addresses, locators and labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.emulator import Emulator
from r2v.emulator.answers import EmulatedRequest
from r2v.envs.base import Unjudged
from r2v.envs.webarena.benchmark import WebArena
from r2v.envs.webarena.home import child_package
from r2v.envs.webarena.judging import AnswerJudge
from r2v.envs.webarena.tasks import is_judged, official_tasks
from r2v.errors import UsageError
from tests import trust
from tests.envs.webarena import listed, real_worlds
from tests.envs.webarena.playing import Call, play
from tests.envs.webarena.stubs import Stub
from tests.llm.talk import environment

AIRPORT = "Pittsburgh International Airport, Southern Beltway, Findlay Township, Allegheny County, 15231, United States"
GIT, SHOP, REDDIT, MAP = (
    "http://gitlab.com",
    "http://onestopmarket.com",
    "http://reddit.com",
    "http://openstreetmap.org",
)
MERGE_389, MERGE_390 = f"{GIT}/primer/design/-/merge_requests/450", "a11yproject/a11yproject.com/-/merge_requests/1531"


def tell(text: str) -> Call:
    return "send_msg_to_user", f"text={text}"


def goto(url: str) -> Call:
    return "goto", f"url={url}"


def post(button: str, **fields: str) -> list[Call]:
    filled: list[Call] = [("fill", f"bid=[textbox {name}]", f"value={value}") for name, value in fields.items()]
    return [*filled, ("click", f"bid=[button {button}]")]


def route(engine: str) -> Call:
    start, end = "Gates and Hillman Centers, Pittsburgh", "Independence Hall, Philadelphia"
    return goto(f"{MAP}/directions?engine={engine}&from={start}&to={end}")


CONSOLE = "what is the recommended console to buy these days"
MEMBERS = f"{GIT}/byteblaze/dotfiles/-/project_members"
CASES: dict[int, tuple[str, list[Call], list[Call]]] = {
    7: ("string: exact_match", [tell(AIRPORT)], [tell("Pittsburgh International Airport")]),
    9: ("string: must_include", [tell(f"It is {AIRPORT}.")], [tell("Pittsburgh")]),
    11: ("string: must_include, one word, taken apart by punkt", [tell("There are 6.")], [tell("There are 16.")]),
    8: ("string: fuzzy_match", [tell("none is so near")], [tell("the one in Findlay")]),
    101: ("string: fuzzy_match N/A", [tell("there is no such shop")], [tell("In-N-Out, 5 minutes")]),
    34: (
        "string: must_include and fuzzy_match",
        [tell("Hyatt Regency Pittsburgh International Airport, none is so near")],
        [tell("Hyatt, none is so near")],
    ),
    173: (
        "string and url",
        [goto(f"{GIT}/byteblaze/empathy-prompts/-/issues/8"), tell("none is so near")],
        [goto(f"{GIT}/byteblaze/empathy-prompts/-/issues/7"), tell("none is so near")],
    ),
    377: (
        "url_match",
        [goto(f"{MAP}/search?query=restaurants%20near%20CMU%20ArtPark%20Lab")],
        [goto(f"{MAP}/search?query=restaurants"), tell("here they are")],
    ),
    389: (
        "html: a page, whole",
        [goto(MERGE_389), *post("Send", Comment="Thanks, working on reviews")],
        [goto(MERGE_389), *post("Send", Comment="Thanks"), tell("done")],
    ),
    390: (
        "html: a page, by locator, exact_match",
        [goto(f"{GIT}/{MERGE_390}"), *post("Send", Comment="lgtm")],
        [goto(f"{GIT}/{MERGE_390}"), *post("Send", Comment="lgtm!"), tell("done")],
    ),
    356: ("html: the last page, by locators", [route("Car")], [route("Bicycle"), tell("done")]),
    118: ("html: the last page, whole", [goto(f"{SHOP}/mouth-guard.html")], [tell("a mouth guard for jaw bruxism")]),
    600: (
        "url and html: the address of a post",
        [goto(f"{REDDIT}/f/consoles"), *post("Create submission", Title=CONSOLE)],
        [goto(f"{REDDIT}/f/nyc"), *post("Create submission", Title=CONSOLE), tell("done")],
    ),
    481: (
        "html: the role of a member",
        [goto(MEMBERS), *post("Invite", Name="abisubramanya27", Role="Guest")],
        [goto(MEMBERS), *post("Invite", Name="abisubramanya27", Role="Reporter"), tell("done")],
    ),
    436: (
        "html: the latest order, by the shop's interface",
        [goto(f"{SHOP}/sales/order/view/order_id/171/"), *post("Reorder")],
        [goto(f"{SHOP}/sales/order/view/order_id/169/"), *post("Reorder"), tell("done")],
    ),
    585: (
        "html: the latest review, by the shop's interface",
        [goto(f"{SHOP}/floor-lamp.html"), *post("Submit Review", Stars="5", Nickname="Emma Lopez")],
        [goto(f"{SHOP}/floor-lamp.html"), *post("Submit Review", Stars="4", Nickname="Emma Lopez"), tell("done")],
    ),
}
"""Task -> what its evaluators do, and calls that end it right and wrong."""


def judgement(request: EmulatedRequest) -> str:
    """The judge: whoever says that none is near, or that no such shop is there, is right."""
    asked = request.messages[-1].content
    if "reported unachievable reason" in asked:
        return "same" if "there is no such shop" in asked else "different"
    return "correct" if "none is so near" in asked else "incorrect"


@pytest.fixture(scope="module")
def webarena(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebArena]:
    folder = tmp_path_factory.mktemp("checkout")
    with Emulator(answer=judgement) as emulator, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment(emulator).items():
            patch.setenv(name, value)
        judge = {"provider": "openai", "model_name": "gpt-6.1-terra"}
        benchmark = WebArena(tasks=[*CASES], judge=judge, slow_mo=0, traces="")
        yield benchmark
        benchmark.close()


TYPED = (7, 11, 8, 101, 173, 377, 389, 356, 600, 481)
"""Played by `make test`; the others with --whole-suites."""


@real_worlds
@pytest.mark.parametrize("id_", CASES if trust.whole_suites else TYPED, ids=str)
def test_the_official_evaluators_tell_right_from_wrong(webarena: WebArena, stub: Stub, id_: int) -> None:
    task = next(task for task in webarena.tasks() if task.task_id == f"webarena.{id_}")
    _, right, wrong = CASES[id_]
    stub.notes.clear()
    played = play(webarena, task, wrong)
    assert (played.ended, played.info.success, played.info.env_fault) == (True, False, None), played.observations[-1]
    stub.notes.clear()
    played = play(webarena, task, right)
    assert (played.ended, played.info.success, played.info.env_fault) == (True, True, None), played.observations[-1]


@listed
def test_no_kind_of_evaluator_is_left_out() -> None:
    def kinds(ids: list[int]) -> set[object]:
        found: set[object] = set()
        for record in (listed[id_] for id_ in ids):
            rules = record["eval"]
            found.add(tuple(rules["eval_types"]))
            for kind, value in (rules.get("reference_answers") or {}).items():
                found.add((kind, value == "N/A"))
            for target in rules["program_html"]:
                where = target["url"].partition("(")[0] if target["url"].startswith("func") else target["url"] == "last"
                what = target["locator"].partition("(")[0] if target["locator"].startswith("func") else "page"
                found |= {(where, what), *target["required_contents"]}
        return found

    listed = official_tasks(child_package("webarena"))
    assert kinds([*CASES]) == kinds([*listed])
    assert sum(map(is_judged, listed.values())) == 118


def test_the_judge_is_asked_once_about_the_same_answer_whoever_asks_and_an_audit_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = [[{"role": "user", "content": "none is so near"}]]
    with Emulator(answer=judgement) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            judge = AnswerJudge({"provider": "openai", "model_name": "gpt-6.1-terra"}, tmp_path)
            assert [*judge.replies(question).values()] == [*judge.replies(question).values()] == ["correct"]
        assert len(emulator.ledger().bills) == 1, "the second process finds the project's reply"
    monkeypatch.delenv("OPENAI_API_KEY")
    written = files_of(tmp_path)
    audit = AnswerJudge("openai:gpt-6.1-terra", tmp_path)
    audit.by_record = True
    assert [*audit.replies(question).values()] == ["correct"] and files_of(tmp_path) == written
    with pytest.raises(Unjudged, match="openai:gpt-6.1-terra judged this answer, and its reply is not in this project"):
        audit.replies([[{"role": "user", "content": "another"}]])
    foreign = AnswerJudge({"provider": "os.path:join", "model_name": "m", "usd_in": 1, "usd_out": 1}, tmp_path)
    foreign.by_record = True
    with pytest.raises(UsageError, match="not one of R2V's own providers"):
        foreign.replies(question)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
