"""Lifetimes on paper: small graphs whose bytes can be counted by hand."""

from __future__ import annotations

from r2v.memory.planner.tape import Tape


def test_a_chain_keeps_only_what_backward_needs() -> None:
    tape = Tape()
    x = tape.input(10)
    middle = tape.op(x, out=20, saves=(x,))
    found = tape.profile(x, tape.op(middle, out=40))
    assert (found.forward, found.after_forward, found.saved) == (70, 50, 10)
    assert found.no_grad == 60, "without keeping, x goes before the last operation runs"


def test_backward_makes_a_gradient_before_it_lets_go() -> None:
    tape = Tape()
    x = tape.input(10)
    found = tape.profile(x, tape.op(x, out=20, saves=(x,), back=5))
    assert (found.backward, found.after_backward) == (10 + 20 + 10 + 5, 10)


def test_a_second_forward_ends_where_backward_has_all_it_needs() -> None:
    tape = Tape()
    x = tape.input(10)
    middle = tape.op(x, out=20, saves=(x,))
    last = tape.op(middle, out=40, saves=(middle,))
    found = tape.profile(x, tape.op(last, out=40))
    assert (found.forward, found.recompute) == (10 + 20 + 40 + 40, 10 + 20), "its output is nobody's need"


def test_weights_gradients_stay_only_where_they_are_new() -> None:
    for fresh, leaves in ((True, 10 + 7), (False, 10)):
        tape = Tape(fresh=fresh)
        x = tape.input(10)
        found = tape.profile(x, tape.op(x, out=20, saves=(x,), weights=7))
        assert (found.backward, found.after_backward) == (10 + 20 + 10 + 7, leaves)


def test_a_residuals_gradient_is_added_to_in_place() -> None:
    """y = x + f(x): the gradient of y is that of both; once f's backward is done, x alone holds it."""
    tape = Tape()
    x = tape.input(10)
    branch = tape.op(x, out=10)
    found = tape.profile(x, tape.op(x, branch, out=10, passes=True))
    assert (found.backward, found.after_backward) == (20, 10)


def test_nothing_is_kept_for_what_requires_no_gradient() -> None:
    tape = Tape()
    x = tape.input(10, requires_grad=False)
    found = tape.profile(x, tape.op(x, out=20, saves=(x,), extra=3))
    assert (found.after_forward, found.after_backward) == (20, 20)


def test_a_callers_name_keeps_a_tensor() -> None:
    for held, most in ((True, 10 + 5 + 5), (False, 15)):
        tape = Tape()
        x = tape.input(10)
        half = tape.op(x, out=5)
        assert tape.profile(x, tape.op(half, out=5), held=held).no_grad == most
