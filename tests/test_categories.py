"""Each category of perturbation alone: its settings, and the table's figures for known outcomes."""

from __future__ import annotations

import numpy as np

from benchmarks.categories import CLEAN, METHODS, PROBABILITY, conditions, table
from r2v.config import PerturbationsConfig
from r2v.config.methods import OURS


def test_each_condition_has_one_category_and_clean_has_none() -> None:
    given = conditions()
    active = {name: settings.active("noisy") for name, settings in given.items()}
    assert list(given) == [CLEAN, *PerturbationsConfig.categories()] and not active.pop(CLEAN)
    assert all([*categories] == [name] and categories[name].prob == PROBABILITY for name, categories in active.items())


def test_what_is_lost_is_of_the_same_tasks_and_compared_with_what_others_lose() -> None:
    all_solved = np.ones((len(METHODS), 8))
    half_lost = all_solved.copy()
    half_lost[:, :4] = 0
    half_lost[METHODS.index(OURS), :4] = [1, 1, 0, 0]  # r2v loses two tasks of eight where all others lose four
    rows = table([{CLEAN: all_solved, "latency": all_solved, "tool_error": half_lost}] * 3)
    clean, latency, error = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:])
    assert len(clean) == len(latency) == len(error)
    assert clean[1:6] == ["1.000"] * 5 and set(clean[6:]) == {""}
    assert latency[6] == "+0.000 [0.000, 0.000]"
    assert error[6].startswith("+0.250 [") and all(cell.startswith("+0.250 [") for cell in error[7:])
