"""Final answers that mean the same, and some that only look so; comparisons that would never end."""

from __future__ import annotations

import pytest

from r2v.errors import EnvironmentFault
from r2v.hrl.tasks import equivalence
from r2v.hrl.tasks.equivalence import EquivalenceProcess, same

EQUAL = [
    (r"\frac{\sqrt{3}}{2}", r"\dfrac{\sqrt3}{2}"),
    ("B", r"\text{(B)}"),
    ("5", "x = 5"),
    ("18.90", r"\$18.90"),
    ("14916", "14{,}916"),
    ("15", r"15\mbox{ cm}^2"),
    ("1024", "2^{10}"),
    (r"\frac{9\pi}{4}", r"9\pi/4"),
    (r"\{1,2,3\}", r"\{3,2,1\}"),
    ("1,2", "2,1"),
    ("x+1", "1+x"),
    ("10", r"10\text{ cm}"),
    (r"\frac12", "0.5"),
    (r"\frac{1}{2}", "1/2"),
    (r"\tfrac{3}{4}", "0.75"),
    ("1000", "1,000"),
    (r"90^\circ", "90"),
    (r"50\%", "50"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("(1,2)", r"\left(1,2\right)"),
    (r"(-\infty,3)", r"\left(-\infty, 3\right)"),
    ("x^2+2x+1", "(x+1)^2"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{Evelyn}", r"\text{ evelyn}"),
    ("-3", "- 3"),
    ("3.0", "3"),
    (r"\frac{-1}{3}", r"-\frac{1}{3}"),
    (r"2\pi", r"2 \pi"),
    ("e^{2}", "e^2"),
    ("7", r"\boxed{7}"),
    ("6+9i", "9i+6"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\frac{3}{\sqrt{2}}", r"\frac{3\sqrt{2}}{2}"),
    ("0.333333333", r"\frac13"),
    ("y=2x+3", "2x+3"),
    ("y = 2x + 3", "y=3+2x"),
    ("12", "12."),
    (r"\log_2 8", "3"),
    (r"5\sqrt{5}", r"\sqrt{125}"),
    ("[2,5]", r"\left[2,5\right]"),
    ("81", "3^4"),
    (r"\frac{1}{8}", "2^{-3}"),
    ("p - q", "-q+p"),
    (r"(3,\frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)"),
    ("10", "10,"),
    ("120", "5!"),
    (r"\text{even}", "even"),
    ("4", "$4$"),
    (r"2\cdot 3", "6"),
    (r"6 \times 10^3", "6000"),
]
"""Pairs that a grader should call equal: the first is the reference."""
UNEQUAL = [
    ("12", "1,2"),
    ("34", "3,4"),
    ("1011", "10,11"),
    ("5", "0,5"),
    (r"\frac12", r"\frac21"),
    ("(1,2)", "(2,1)"),
    ("1024", "10^2"),
    (r"\sqrt{2}", "1.41"),
    ("5", "x = 6"),
    ("[1,2)", "[1,2]"),
    (r"\text{even}", r"\text{odd}"),
]


def test_answers_in_latex_are_compared_by_what_they_mean() -> None:
    """At least 48 of 50 equal pairs, and none of 11 unequal ones."""
    missed = [pair for pair in EQUAL if not same(*pair)]
    assert len(EQUAL) == 50 and len(missed) <= 2, missed
    assert len(UNEQUAL) == 11 and [pair for pair in UNEQUAL if same(*pair)] == []


def test_what_would_never_end_is_ended_and_the_next_question_is_answered() -> None:
    child = EquivalenceProcess(seconds=1.0)
    try:
        assert child.same("x+1", "1+x")
        first = child._child
        assert not child.same("7", "9^{9^{9^{9}}}")
        assert first is not None and first.poll() is not None, "it was ended, or out of memory"
        assert child.same(r"\frac{1}{2}", "0.5") and child._child is not first
    finally:
        child.close()
    assert child._child is None
    child.close()


def test_a_process_that_does_not_start_is_a_fault_and_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence.sys, "executable", "/bin/true")
    child = EquivalenceProcess()
    with pytest.raises(EnvironmentFault, match="math-verify: its process did not start"):
        child.same("x+1", "1+x")
    assert child._child is None
