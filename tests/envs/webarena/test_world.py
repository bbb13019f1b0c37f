"""Right and wrong answers of every kind of evaluator, graded by the official package on sites built from the tasks' own
addresses, locators and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.emulator import Emulator
from r2v.emulator.answers import EmulatedRequest
from r2v.envs.base import Unjudged
from r2v.envs.webarena.benchmark import WebArena
from r2v.envs.webarena.home import child_package
from r2v.envs.webarena.judging import AnswerJudge
from r2v.envs.webarena.regrading import regrade
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


def route(engine: str) -> list[Call]:
    """Return the calls that ask for a route by the form on the map's first page."""
    ends = {"From": "Gates and Hillman Centers, Pittsburgh", "To": "Independence Hall, Philadelphia"}
    filled: list[Call] = [("fill", f"bid=[textbox {name}]", f"value={value}") for name, value in ends.items()]
    return [*filled, ("select_option", "bid=[combobox Engine]", f"options={engine}")]


def submit(forum: str) -> list[Call]:
    return [goto(f"{REDDIT}/submit/{forum}"), *post("Create submission", Title=CONSOLE)]


def buy(product: str) -> list[Call]:
    added: list[Call] = [goto(f"{SHOP}/{product}.html"), *post("Add to Cart")]
    return [*added, goto(f"{SHOP}/checkout/"), *post("Place Order")]


def rate(stars: int) -> list[Call]:
    said = {"Nickname": "Emma Lopez", "Summary": "Good purchase", "Review": "I like it"}
    return [goto(f"{SHOP}/floor-lamp.html"), ("click", f"bid=[radio {stars} stars]"), *post("Submit Review", **said)]


CONSOLE = "what is the recommended console to buy these days?"
MEMBERS = f"{GIT}/byteblaze/dotfiles/-/project_members"
CASES: dict[int, tuple[str, list[Call], *tuple[list[Call], ...]]] = {
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
        [goto(f"{GIT}/{MERGE_390}"), *post("Send", Comment="lgtm, after lunch"), tell("done")],
        [goto(f"{GIT}/{MERGE_390}"), *post("Send", Comment="lgtm!"), tell("done")],
    ),
    70: ("string: exact_match, as webarena-verified grades it too", [tell("15213")], [tell("15232")]),
    356: ("html: the last page, by locators", route("Car"), [*route("Bicycle"), tell("done")]),
    118: ("html: the last page, whole", [goto(f"{SHOP}/mouth-guard.html")], [tell("a mouth guard for jaw bruxism")]),
    600: (
        "url and html: the address of a post",
        submit("consoles"),
        [*submit("nyc"), tell("done")],
    ),
    481: (
        "html: the role of a member",
        [goto(MEMBERS), *post("Invite", Name="abisubramanya27", Role="Guest")],
        [goto(MEMBERS), *post("Invite", Name="abisubramanya27", Role="Reporter"), tell("done")],
    ),
    436: (
        "html: the latest order, by the shop's interface",
        buy("mattress-foundation"),
        [*buy("mattress-cover"), tell("done")],
    ),
    585: (
        "html: the latest review, by the shop's interface",
        rate(5),
        [*rate(4), tell("done")],
    ),
}
"""Task -> the kind of its evaluators, calls that solve it, and calls that fail it."""


TRACES = "traces"
NOT_COVERED = {7, 9, 34, 11, 8, 101, 173, 356}
"""Tasks that the offline grader cannot grade: records, a number or a boolean within a sentence, a sentence for an
error, and a route, of which it sees only the map's first page."""
LENIENT = {390}
"""Tasks of which the offline grader accepts the last wrong end: it strips marks at both ends of a text, so that "lgtm!"
is "lgtm" (_strip_prefix_suffix of webarena_verified.core.evaluation.data_types.string)."""


def judgement(request: EmulatedRequest) -> str:
    """Return the judge's verdict: correct for an answer that none is near, or that no such shop exists."""
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
        benchmark = WebArena(tasks=[*CASES], judge=judge, slow_mo=0, traces=str(folder / TRACES))
        yield benchmark
        benchmark.close()


PLAYED = (*CASES,) if trust.whole_suites else (7, 11, 8, 101, 173, 377, 389, 356, 600, 481)
"""Tasks to play: `make test` plays some."""


@real_worlds
@pytest.mark.parametrize("id_", PLAYED, ids=str)
def test_the_official_evaluators_tell_right_from_wrong(webarena: WebArena, stub: Stub, id_: int) -> None:
    tell_apart(webarena, stub, id_)


def tell_apart(webarena: WebArena, stub: Stub, id_: int) -> None:
    """Play a task wrong and right; record its traffic."""
    task = next(task for task in webarena.tasks() if task.task_id == f"webarena.{id_}")
    _, right, *wrong = CASES[id_]
    for calls in (*wrong, right):
        stub.notes.clear()
        played = play(webarena, task, calls)
        end = (played.ended, played.info.success, played.info.env_fault)
        assert end == (True, calls is right, None), played.observations[-1]


@real_worlds
def test_the_offline_grader_agrees_with_the_live_one_on_all_that_it_covers(
    webarena: WebArena, stub: Stub, tmp_path: Path
) -> None:
    """The live evaluators look at the sites, webarena-verified at the requests that reached them."""
    traces = Path(TRACES)
    for id_ in PLAYED:
        if not any(json.loads(path.read_text())["task_id"] == f"webarena.{id_}" for path in traces.glob("*.json")):
            tell_apart(webarena, stub, id_)
    told = regrade(traces, out=tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    print(*told, sep="\n")
    for id_ in PLAYED:
        wrong = [0.0 if id_ not in NOT_COVERED else None] * len(CASES[id_][2:])
        expected = [*wrong, 1.0 if id_ not in NOT_COVERED else None]
        if id_ in LENIENT:
            expected[-2] = 1.0
        ends = [(row["live"], row["regraded"]) for row in rows if row["task_id"] == f"webarena.{id_}"]
        live = [0.0] * len(wrong) + [1.0]
        assert sorted(ends, key=lambda end: (end[0], end[1] or 0.0)) == [*zip(live, expected, strict=True)], id_


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
