"""Content of a section: what decides results is in it, whichever way it was written."""

from __future__ import annotations

import pytest

from r2v.config import PolicyConfig, identity


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (PolicyConfig(), False),
        (PolicyConfig(max_seq_len=1000), False),
        (PolicyConfig(max_seq_len=200), True),
        (PolicyConfig(model_name="some/model"), True),
    ],
)
def test_the_rule_of_elision_is_named_where_contexts_may_be_too_long(policy: PolicyConfig, named: bool) -> None:
    assert identity(policy).get("elision") == ("half" if named else None)
