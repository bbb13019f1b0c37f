"""Problem files, in their published formats and with faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.hrl.tasks.problems import final_answer, last_boxed, read_problems

GSM8K = [
    {
        "question": "A shop sold 48 pens in April and half as many in May. How many pens did it sell in both?",
        "answer": "It sold 48/2 = <<48/2=24>>24 pens in May.\nIt sold 48+24 = <<48+24=72>>72 pens in all.\n#### 72",
    },
    {
        "question": "A car costs $1,000 more than a boat of $250. What does it cost?",
        "answer": "1000+250 = <<1000+250=1250>>1250\n#### 1,250",
    },
]
MATH = [
    {
        "problem": "What is half of $\\frac{2}{3}$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "Half of it is $\\frac{1}{2}\\cdot\\frac{2}{3} = \\boxed{\\frac{1}{3}}$.",
    },
    {
        "problem": "Name the interval.",
        "level": "Level 3",
        "type": "Algebra",
        "solution": "First \\boxed{1}; then all $x$ with $0<x<2$, that is $\\boxed{(0, 2)}$.",
    },
]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_gsm8k_as_it_is(tmp_path: Path) -> None:
    problems = read_problems(written(tmp_path, *GSM8K))
    assert [problem.text for problem in problems] == [line["question"] for line in GSM8K]
    assert [problem.answer for problem in problems] == ["72", "1,250"]


def test_math_as_it_is(tmp_path: Path) -> None:
    problems = read_problems(written(tmp_path, *MATH))
    assert [problem.answer for problem in problems] == ["\\boxed{\\frac{1}{3}}", "\\boxed{(0, 2)}"]


def test_plain_lines_with_and_without_ids(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"problem": "1+1?", "answer": "2", "id": "one"},
        "",
        {"question": "2+2?", "answer": 4},
        {"problem": "3+3?", "answer": "6", "id": 7},
    )
    problems = read_problems(path)
    assert [problem.answer for problem in problems] == ["2", "4", "6"]
    assert problems[0].id == "one" and problems[2].id == "7"


def test_a_nameless_problem_is_called_after_what_it_says_wherever_it_stands(tmp_path: Path) -> None:
    first = {problem.text: problem.id for problem in read_problems(written(tmp_path, *GSM8K))}
    assert first == {problem.text: problem.id for problem in read_problems(written(tmp_path, *reversed(GSM8K)))}
    assert len(set(first.values())) == 2


GOOD = {"problem": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "holds no problems"),
        (("", "  "), "holds no problems"),
        ((GOOD, "{not json"), ":2: not JSON"),
        ((GOOD, "", "[1]"), ":3: a list, not an object"),
        ((GOOD, {"problem": "2+2?"}), ":2: has no answer or solution (keys: problem)"),
        (({"answer": "2"},), ":1: has no problem or question (keys: answer)"),
        (({"problem": "  ", "answer": "2"},), ':1: problem is "  "'),
        (({"problem": "1+1?", "answer": None},), ":1: answer is null"),
        (({"problem": "1+1?", "answer": True},), ":1: answer is true"),
        (({"problem": "1+1?", "answer": "so it is\n####  "},), ":1: its answer ends in nothing"),
        (({**GOOD, "id": ["a"]},), ':1: id is ["a"]'),
        (({**GOOD, "id": ""},), ':1: id is ""'),
        ((GOOD, {**GOOD, "answer": "3"}), ":2: the same id or the same problem as in line 1"),
        (({**GOOD, "id": "a"}, {"problem": "2+2?", "answer": "4", "id": "a"}), ":2: the same id"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, lines: tuple[object, ...], said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_problems(written(tmp_path, *lines))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_problems(tmp_path / "gone.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=":1: not JSON"):
        read_problems(tmp_path / "binary")


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \fbox{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{a {b} c}", "a {b} c"),
        ("none", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_closed_box(text: str, held: str | None) -> None:
    assert last_boxed(text) == held


def test_what_a_solution_comes_to() -> None:
    assert final_answer("#### 1\nno\n#### 2 ") == "2"
    assert final_answer(" seven ") == "seven"
