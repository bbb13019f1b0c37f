"""A third party's setup: one that would take all memory or hours is refused before it is used."""

from __future__ import annotations

import pytest

from r2v.config import load
from r2v.envs.desk import Desk
from r2v.errors import InputError
from r2v.evaluation.audit.check_setup import planned_specs
from r2v.evaluation.settings import EvaluateSettings


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("evaluation.bootstrap=1000000", r"config\.yaml: evaluation\.bootstrap is 1000000, allowed: up to \d+"),
        ("evaluation.seeds=[" + ",".join(map(str, range(5000))) + "]", r"config\.yaml: plans \d+ episodes and more"),
    ],
)
def test_a_plan_that_no_memory_holds_or_that_takes_hours_is_refused(key: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned_specs(EvaluateSettings.of(load(None, [key])), Desk())
