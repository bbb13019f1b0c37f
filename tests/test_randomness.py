"""Draws are looked up, never advanced: the same key gives the same number everywhere."""

from __future__ import annotations

import subprocess
import sys

from r2v.randomness import digest, generator, seed_of, uniform


def test_known_answers() -> None:
    assert digest(1, "task", 0).hex()[:16] == "e41358804682070c"
    assert uniform(1, "task", 0) == 0.8909201920673766
    assert seed_of(1, "task", 0) == 8217288386583528326
    assert generator(1, "task", 0).random() == generator(1, "task", 0).random()
    assert digest("é").hex()[:16] == "0b657be394b1d432", "a key is hashed as it is written, not escaped"
    assert uniform("é", 1) == 0.8671480885615775


def test_the_same_in_a_process_with_another_hash_seed() -> None:
    code = "from r2v.randomness import *; print(uniform(7, 'é', 3, 'slm'), generator('a', 1).random())"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "123", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [float(number) for number in printed] == [uniform(7, "é", 3, "slm"), generator("a", 1).random()]


def test_keys_are_told_apart() -> None:
    keys = [(1, "a"), ("1", "a"), ("a", 1), (1, "a", 0), ("1a",), ("1", "a", ""), ('1","a',)]
    assert len({digest(*key) for key in keys}) == len(keys)


def test_draws_are_uniform_and_below_one() -> None:
    draws = [uniform("uniform", index) for index in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    cells = [sum(int(draw * 20) == cell for draw in draws) for cell in range(20)]
    chi_square = sum((cell - 200) ** 2 / 200 for cell in cells)
    assert chi_square < 43.82, "beyond the 99.9 % quantile of chi-square with 19 degrees of freedom"


def test_no_other_draw_moves_a_draw() -> None:
    before = uniform(1, "x")
    for index in range(100):
        generator("other", index).random()
    assert uniform(1, "x") == before


def test_seeds_fit_63_bits() -> None:
    assert all(0 <= seed_of("seed", index) < 2**63 for index in range(1000))
