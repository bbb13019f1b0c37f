"""Checkers: the answers that count as right; a checker that fails names its problem."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.hrl.tasks.checkers import checked_score, checker_of, infer_checker, program
from r2v.hrl.tasks.problems import Problem
from r2v.sandbox import process
from tests.sandbox import MODES, sandboxed


def problem(answer: str, name: str = "p1") -> Problem:
    return Problem(id=name, text="?", answer=answer)


@pytest.mark.parametrize(
    ("answer", "said", "score"),
    [
        ("72", "72", 1),
        ("72", "It is 48 + 24 = 72.", 1),
        ("72", "#### 72", 1),
        ("72", "#### 72 and not 73", 1),
        ("73", "#### 72 and not 73", 0),
        ("12", "3 * 4\n#### 12 (which is 3*4)", 1),
        ("12", "#### 3*4 = 12", 1),
        ("12", "#### (12)", 1),
        ("12", "####\n12\nor 13", 1),
        ("18.5", "#### $18.50 per 2 hours", 1),
        ("12", "#### 13\n#### 12", 1),
        ("12", "12 ####", 0),
        ("72", "72 or 71", 0),
        ("72", "the 71 is\n#### 72\nok", 1),
        ("1,250", "$1250", 1),
        ("1250", "1,250.00", 1),
        ("0.5", "1/2", 1),
        ("1/3", "0.333333333", 1),
        ("-4", "-4", 1),
        ("-4", "4", 0),
        ("72", "", 0),
        ("72", "none", 0),
        ("72", r"so 3 and \boxed{72} of 100", 1),
        (r"\boxed{72}", "72", 1),
        ("1e3", "1000", 1),
        ("7", "7/0", 0),
        ("0", "0", 1),
        ("0", "0.0001", 0),
    ],
)
def test_numbers(answer: str, said: str, score: float) -> None:
    assert checker_of("numeric")(problem(answer), said) == score


@pytest.mark.parametrize(
    ("answer", "said", "score"),
    [("Paris", "paris.", 1), ("Paris", "It is\n#### Paris", 1), ("Paris", "Paris in France", 0), ("a b", " a  b ", 1)],
)
def test_words(answer: str, said: str, score: float) -> None:
    assert checker_of("exact")(problem(answer), said) == score


@pytest.mark.parametrize(
    ("answer", "said", "score"),
    [
        (r"\boxed{\frac{1}{3}}", r"so \boxed{\dfrac13}", 1),
        (r"\boxed{\frac{1}{3}}", r"so \boxed{1/3}", 1),
        (r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", 1),
        (r"\boxed{\frac{1}{3}}", "1/3", 0),
        (r"\boxed{3}", r"\boxed{4}", 0),
        (r"\boxed{(0, 2)}", r"\boxed{\left(0,2\right)}", 1),
        (r"\boxed{10}", r"\boxed{10\%}", 1),
        ("10", r"\boxed{10}", 1),
        (r"\boxed{\text{yes}}", r"\boxed{yes}", 1),
        (r"\boxed{1,000}", r"\boxed{1000}", 1),
        (r"\boxed{x+1}", r"\boxed{x-1}", 0),
        (r"\boxed{12}", "so\n#### 12", 1),
        (r"\boxed{12}", r"#### 13, no: \boxed{12}", 1),
        (r"\boxed{12}", "12", 0),
        (r"\boxed{12}", r"\boxed{}", 0),
    ],
)
def test_boxes(answer: str, said: str, score: float) -> None:
    assert checker_of("boxed")(problem(answer), said) == score


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (["72", "1,250", "-3.5"], "numeric"),
        ([r"\boxed{3}", r"\boxed{x}"], "boxed"),
        (["assert f(1) == 2"], "program"),
        (["3", "Paris"], "exact"),
        ([r"\boxed{3}", "4"], "numeric"),
        (["3 of 4"], "exact"),
    ],
)
def test_auto_looks_at_the_answers(answers: list[str], kind: str) -> None:
    assert infer_checker([problem(answer) for answer in answers]) == kind


def test_names_and_answers_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="did you mean numeric"):
        checker_of("numerik")
    with pytest.raises(UsageError, match="no answers to look at"):
        checker_of("auto")
    with pytest.raises(InputError, match="problem p2: its answer 'Paris' is no number"):
        checker_of("numeric", [problem("3"), problem("Paris", "p2")])
    with pytest.raises(InputError, match="problem p1: its answer 'f works' asserts nothing"):
        checker_of("program", [problem("f works")])
    with pytest.raises(InputError, match=r"problem p1: its answer 'assert f\(\) = 1' is no Python"):
        checker_of("program", [problem("assert f() = 1")])


def test_a_checker_that_raises_is_one_line_that_names_the_problem() -> None:
    def broken(asked: Problem, said: str) -> float:
        return 1 / len(said)

    assert checked_score(broken, problem("1"), "abcd") == 0.25
    said = "problem p1: its checker failed on the answer '' \\(ZeroDivisionError"
    with pytest.raises(InputError, match=said) as refused:
        checked_score(broken, problem("1"), "")
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="problem p1: its checker gave 2.0"):
        checked_score(lambda asked, said: 2.0, problem("1"), "x")


SQUARE = problem("assert f(2) == 4\nassert f(3) == 9")
RIGHT = "def f(x): return x * x"


@pytest.mark.parametrize(
    ("said", "score"),
    [
        (RIGHT, 1),
        (f"Here:\n```python\ndef f(x): return 0\n```\nno,\n```python\n{RIGHT}\n```\nyes", 1),
        ("def f(x): return 4", 0),
        ("def f(x)", 0),
        ("", 0),
        ("import os\nos._exit(0)", 0),
        ("raise SystemExit(0)", 0),
        (f"waste = bytearray(1 << 30)\n{RIGHT}", 0),
        (f"open('big', 'wb').write(b'x' * (2 << 20))\n{RIGHT}", 0),
        (f"import torch\n{RIGHT}", 0),
    ],
)
@sandboxed
def test_programs_are_run_with_the_problem_s_tests(said: str, score: float) -> None:
    assert checker_of("program", [SQUARE])(SQUARE, said) == score


@sandboxed
def test_a_program_that_does_not_end_is_cut_off() -> None:
    assert program(SQUARE, f"{RIGHT}\nwhile True: pass") == 0


@sandboxed
def test_a_program_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("A_SECRET", "told")
    monkeypatch.chdir(tmp_path)
    assert program(SQUARE, f"import os\nassert 'A_SECRET' not in os.environ and not os.listdir()\n{RIGHT}") == 1
    assert program(SQUARE, f"open('left', 'w').write('x')\n{RIGHT}") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("unsafe", MODES)
def test_a_program_has_no_network_where_it_can_be_given_one_of_its_own(unsafe: bool) -> None:
    own = program(SQUARE, f"import os\nassert os.stat('/proc/self/ns/net').st_ino != {_net()}\n{RIGHT}", unsafe=unsafe)
    assert unsafe or own
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached = program(
            SQUARE, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\n{RIGHT}", unsafe=unsafe
        )
    assert reached == 1 - own


@sandboxed
def test_tests_that_hand_over_no_data_name_their_problem() -> None:
    with pytest.raises(InputError, match="problem p1: its tests give the answer a Own, which is no data"):
        program(problem("class Own: pass\nassert f(Own())"), RIGHT)


def test_without_a_sandbox_programs_are_refused_unless_that_is_allowed_and_then_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process.shutil, "which", lambda name: None)
    process.lacking.cache_clear()
    try:
        with pytest.raises(EnvironmentFault, match="bubblewrap is not installed"):
            checker_of("auto", [SQUARE])
        with caplog.at_level("WARNING", logger="r2v"):
            checker = checker_of("program", [SQUARE], unsafe=True)
        assert caplog.messages == [
            "the model's code runs WITHOUT a sandbox: hierarchical.problems.unsafe=true reason=bubblewrap is not "
            "installed; install the package bubblewrap (in a checkout: make sandbox)"
        ]
        assert (checker(SQUARE, RIGHT), checker(SQUARE, "def f(x): return 4")) == (1, 0)
    finally:
        process.lacking.cache_clear()


def _net() -> int:
    return Path("/proc/self/ns/net").stat().st_ino
