from __future__ import annotations

import pytest

from r2v.evaluation.figure_text import decimals, p_text, signed


@pytest.mark.parametrize(("p", "text"), [(None, ""), (0.0018, "< 0.01"), (0.01, "0.010"), (0.168, "0.168")])
def test_no_p_is_written_below_what_the_draws_can_tell(p, text):
    assert p_text(p) == text


@pytest.mark.parametrize(("number", "text"), [(0.5, ".50"), (-0.031, "-.03"), (10.5, "10.50"), (1.0, "1.00")])
def test_a_number_loses_the_nought_before_its_point_and_no_other(number, text):
    assert decimals(number) == text and signed(number).lstrip("+") == text
