from __future__ import annotations

import pytest

from r2v.errors import InputError
from r2v.evaluation.figure_text import claim_text, decimals, p_text, signed


@pytest.mark.parametrize(("p", "text"), [(None, ""), (0.0018, "< 0.01"), (0.01, "0.010"), (0.168, "0.168")])
def test_no_p_is_written_below_what_the_draws_can_tell(p, text):
    assert p_text(p) == text


@pytest.mark.parametrize(("number", "text"), [(0.5, ".50"), (-0.031, "-.03"), (10.5, "10.50"), (1.0, "1.00")])
def test_a_number_loses_the_nought_before_its_point_and_no_other(number, text):
    assert decimals(number) == text and signed(number).lstrip("+") == text


@pytest.mark.parametrize("template", ["{nope}", "{a:>4000000000}", "{a.__class__.__mro__}", "{a!r}", "{}", "{{a}", "}"])
def test_a_claim_substitutes_the_names_of_its_fields_and_refuses_other_templates(template):
    claim = {"id": "claim/1", "fields": {"a": "r2v {b}", "b": "slm_only"}}
    assert claim_text(claim | {"text_template": "{a} beats {b}"}) == "r2v {b} beats slm_only"
    with pytest.raises(InputError, match="claim 'claim/1': text_template is .*allowed: text and the names {a}, {b}"):
        claim_text(claim | {"text_template": template})
