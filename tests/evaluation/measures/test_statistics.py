"""Known answers: closed forms and figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from r2v.evaluation.measures import statistics as st

A = [1, 1, 1, 1, 0, 0, 1, 1, 1, 0]
B = [1, 0, 1, 0, 0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(("alpha", "expected"), [(0.2, 0.5), (0.3, 0.466667), (0.4, 0.45), (1.0, 0.3)])
def test_cvar_counts_the_fraction_on_the_border(alpha, expected):
    assert st.cvar([0.1, 0.2, 0.3, 0.4, 0.5], alpha) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.490162, 0.943318), (0, 30, 0, 0.113513), (100, 100, 0.963007, 1)],
)
def test_wilson(successes, trials, low, high):
    assert st.wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_wilson_of_nothing_says_nothing():
    assert st.wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("only_a", "only_b", "exact"),
    [(10, 2, 0.038574), (6, 0, 0.03125), (5, 0, 0.0625), (0, 0, 1.0), (3, 3, 1.0)],
)
def test_mcnemar(only_a, only_b, exact):
    assert st.mcnemar(only_a, only_b)[0] == pytest.approx(exact, abs=1e-6)
    assert st.mcnemar(only_b, only_a) == st.mcnemar(only_a, only_b)


def test_mcnemar_mid_p():
    assert st.mcnemar(10, 2)[1] == pytest.approx(0.022461, abs=1e-6)


def test_holm():
    assert st.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert st.holm([]) == []


def test_an_adjusted_p_is_a_probability_and_keeps_the_order_given():
    assert st.holm([0.6, 0.7]) == [1.0, 1.0]
    assert st.holm([0.04, 0.9, 0.04]) == pytest.approx([0.12, 0.9, 0.12])
    assert st.holm([0.9, 0.5, 0.001]) == pytest.approx([1.0, 1.0, 0.003])


def test_a_percentile_interval_is_the_central_share_and_leaves_out_what_is_undefined():
    draws = np.arange(101.0)
    assert st.percentile_interval(draws) == pytest.approx((2.5, 97.5))
    assert st.percentile_interval(draws, 0.5) == (25.0, 75.0)
    twentieth = np.concatenate([draws[:95], [np.nan] * 5])
    assert st.percentile_interval(twentieth, 0.5) == (23.5, 70.5)
    assert st.percentile_interval(np.concatenate([draws[:94], [np.nan] * 6])) is None


def test_a_ratio_without_a_denominator_is_undefined_and_one_of_nought_is_nought():
    draws = st.ratio_draws([0.0, 3.0], [0.0, 0.5], np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    assert np.isnan(draws[0]) and draws[1:].tolist() == [6.0, 6.0]
    both = st.ratio_draws([[1.0, 0.0], [3.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]], np.array([[1.0, 1.0], [2.0, 0.0]]))
    assert both.tolist() == [[2.0, 1.0], [1.0, 0.0]]


def test_resamples_draw_every_task_as_often_as_any_other():
    counts = st.resample_counts(4, 4_000)
    assert counts.shape == (4_000, 4) and not counts.flags.writeable
    assert counts.mean(axis=0) == pytest.approx(np.ones(4), abs=0.06)
    assert counts.var() == pytest.approx(0.75, abs=0.05), "binomial: 4 draws, each with 1/4"
    assert counts.min() == 0 and counts.max() == 4


def test_seeds_are_averaged_within_their_task():
    seeds = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert st.cluster_bootstrap_ci(seeds) == st.cluster_bootstrap_ci([0.5, 1.0, 0.0])
    assert st.paired_difference(seeds, [0.0, 0.0, 0.0]).difference == 0.5


def test_one_task_has_no_spread_and_no_power():
    d = st.paired_difference([1.0], [0.0])
    assert (d.difference, d.standard_error, d.interval) == (1.0, 0.0, (1.0, 1.0))
    assert (d.effect_size, d.detectable, d.num_tasks, d.p_value) == (None, None, 1, 1.0)


def test_a_difference_in_standard_deviations_of_a_sample():
    d = st.paired_difference([1.0, 0.0, 1.0], [0.0, 0.0, 0.0], level=0.9)
    assert d.effect_size == pytest.approx((2 / 3) / math.sqrt(1 / 3))
    assert d.standard_error == pytest.approx(1 / 3)
    assert d.detectable == pytest.approx((1.644854 + 0.841621) / 3, abs=1e-5)


def test_signs_that_are_drawn_are_as_often_plus_as_minus():
    """30 tasks, 20 of them one way: the binomial's two tails."""
    from scipy.stats import binomtest

    drawn = st.sign_flip_p([1.0] * 20 + [-1.0] * 10, draws=20_000)
    assert drawn == pytest.approx(float(binomtest(10, 30).pvalue), abs=0.01)
    assert st.sign_flip_p([1.0] * 21, draws=99) == pytest.approx(1 / 100), "the observed signs are counted in"
    assert st.sign_flip_p([1.0] * 20) == 2 / 2**20, "20 tasks are enumerated"


def test_paired_difference():
    d = st.paired_difference(A, B)
    assert (d.difference, d.standard_error) == pytest.approx((0.3, 0.152753), abs=1e-6)
    assert d.interval == pytest.approx((0.0, 0.6))
    assert d.p_value == 0.25  # three tasks differ, all one way: 2 of 2^3 sign vectors
    assert d.detectable == pytest.approx(2.801585 * 0.152753, abs=1e-5)


def test_no_difference_is_said_to_be_none():
    d = st.paired_difference(A, A)
    assert (d.difference, d.p_value, d.effect_size, d.detectable) == (0.0, 1.0, None, None)


def test_sign_flip_draws_agree_with_the_exact_answer():
    differences = np.array([0.5] * 9 + [-0.5] * 3 + [1.0, -1.0, 1.0, 0.0, 0.5])
    exact = st.sign_flip_p(differences)
    scaled_up = st.sign_flip_p(np.concatenate([differences, [1e-12] * 6]), draws=20_000)
    assert scaled_up == pytest.approx(exact, abs=0.02)


def test_sign_flip_never_gives_zero():
    assert 0 < st.sign_flip_p([1.0] * 60) < 0.001


def test_type_one_error_is_held_with_twelve_copies_of_each_task():
    """Two methods of equal success on 100 tasks, 12 similar copies of each: signs of tasks reject in about 5 % of the
    repetitions, McNemar over episodes, as if copies were independent, far more often."""
    rng = np.random.default_rng(1)
    clustered, flat = 0, 0
    for _ in range(200):
        # Half of an episode's outcome depends on its task: copies are alike, not the same.
        chance = rng.beta(0.5, 0.5, (2, 100, 1))
        a, b = (rng.random((2, 100, 12)) < chance).astype(float)
        clustered += st.sign_flip_p(a.mean(1) - b.mean(1), draws=500) < 0.05
        flat += st.mcnemar(int((a > b).sum()), int((b > a).sum()))[0] < 0.05
    assert clustered <= 0.08 * 200
    assert flat > 0.12 * 200


def test_twelve_equal_copies_of_a_task_are_one_task():
    rng = np.random.default_rng(1)
    a, b = (np.repeat(row[:, None], 12, axis=1).astype(float) for row in rng.random((2, 40)) < 0.5)
    flat = st.paired_difference(a.ravel(), b.ravel(), resamples=500)
    clustered = st.paired_difference(a, b, resamples=500)
    assert clustered.standard_error == pytest.approx(flat.standard_error * math.sqrt(12), rel=0.05)


def test_bootstrap_is_keyed_and_matches_the_binomial():
    values = [1.0] * 30 + [0.0] * 20
    assert st.cluster_bootstrap_ci(values) == st.cluster_bootstrap_ci(values)
    assert st.cluster_bootstrap_ci(values) == pytest.approx((0.46, 0.74), abs=0.021)


def test_a_ratio_is_resampled_as_a_ratio():
    counts = st.resample_counts(3, 1000)
    assert (counts.sum(axis=1) == 3).all()
    draws = st.ratio_draws([2, 4, 6], [10, 20, 30], counts)
    assert draws == pytest.approx(np.full(1000, 0.2))
    assert st.percentile_interval(st.ratio_draws([0, 0, 1], [0, 0, 1], counts)) is None


def test_power_of_a_paired_comparison():
    """5 points at p = .6 need 1,506 tasks uncorrelated, 302 at correlation .8."""
    for correlation, tasks in ((0.0, 1506), (0.5, 753), (0.8, 302)):
        error = math.sqrt(2 * 0.24 * (1 - correlation) / tasks)
        assert st.minimum_detectable_difference(error) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("draws", "p"),
    [
        ([0.1] * 99, 2 / 100),  # none on the other side, and one more is counted
        ([0.1] * 95 + [-0.1] * 4, 2 * 5 / 100),
        ([-0.1] * 97 + [0.0] * 2, 2 * 3 / 100),  # 0 itself is on both sides
        ([0.1, -0.1], 1.0),
        ([0.1] * 99 + [float("nan")] * 50, 2 / 100),
    ],
)
def test_a_bootstrap_p_is_twice_the_share_on_the_rarer_side_of_zero(draws: list[float], p: float) -> None:
    assert st.bootstrap_p(draws) == pytest.approx(p)
    assert st.bootstrap_p([-draw for draw in draws]) == pytest.approx(p)


@pytest.mark.parametrize("num_tasks, resamples", [(1, 1), (1, 3), (2, 5), (7, 400), (1500, 700), (40_000, 30)])
def test_drawn_in_blocks_every_bit_is_that_of_one_piece(num_tasks: int, resamples: int) -> None:
    """The memory is that of a block; the samples, and the order of every sum, stay the same."""
    rng = np.random.default_rng(st.seed_of("bootstrap", num_tasks, resamples))
    drawn = rng.integers(num_tasks, size=(resamples, num_tasks))
    whole = np.array([np.bincount(row, minlength=num_tasks) for row in drawn], float)
    counts = st.resample_counts(num_tasks, resamples)
    np.testing.assert_array_equal(counts, whole)
    assert counts.nbytes == resamples * num_tasks
    draw = np.random.default_rng(3)
    for shape in ((num_tasks,), (num_tasks, 1), (num_tasks, 10)):
        above, below = draw.normal(size=shape), draw.integers(0, 2, shape)
        parts = [np.einsum("bt,t...->b...", whole, part.astype(float)) for part in (above, below)]
        expected = np.where(parts[1] > 0, parts[0], np.nan) / parts[1]
        assert st.ratio_draws(above, below, counts).tobytes() == expected.tobytes()


def test_a_table_too_large_to_be_kept_is_drawn_anew_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded whatever an evaluation's shape: tables fill `_KEPT` at most, and a larger one is held a block
    at a time."""
    draw = np.random.default_rng(5)
    above, below = draw.normal(size=(700, 3)), draw.integers(0, 2, (700, 3))
    expected = st.ratio_draws(above, below, st.resample_counts(700, 900))
    assert st.bootstrap_draws(above, below, 900).tobytes() == expected.tobytes()
    monkeypatch.setattr(st, "_tables", {})
    monkeypatch.setattr(st, "_KEPT", 700 * 900 - 1)
    assert st.bootstrap_draws(above, below, 900).tobytes() == expected.tobytes()
    assert st._tables == {}
    for num_tasks in (600, 100, 150, 601):
        st.bootstrap_draws(np.ones(num_tasks), np.ones(num_tasks), 900)
    assert [table.shape for table in st._tables.values()] == [(900, 601)]
    st.resample_counts(40, 900)
    assert st.resample_counts(601, 900) is st._tables[601, 900, "bootstrap"]
    assert sum(table.nbytes for table in st._tables.values()) == 641 * 900


@pytest.mark.parametrize(("mebibytes", "kept"), [(62, 2), (63, 1)])
def test_tables_of_resamples_take_64_mebibytes_in_all(
    mebibytes: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(st, "_tables", {(1, 1, "earlier"): np.empty(mebibytes << 20, np.uint8)})
    st.resample_counts(2, 1 << 20)
    assert len(st._tables) == kept and (2, 1 << 20, "bootstrap") in st._tables
