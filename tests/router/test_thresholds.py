from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from r2v.config.methods import METHODS, OURS
from r2v.envs.chain import ChainBenchmark
from r2v.randomness import generator
from r2v.router.thresholds import (
    ALTERNATIVES,
    GUARDED,
    MARGIN,
    OperatingPoint,
    PlacedScore,
    RateSearch,
    ScoreChoice,
    Spending,
    available,
    guarantee,
    guarded_thresholds,
    hoeffding_bentkus,
    learn_then_test,
    match_rate,
    paired,
    search_together,
)
from tests.chains import chain_stage, random_gate, specs

SCORES = [i / 1_000 for i in range(1, 1_000)]


def played(rate_of: Callable[[float], float], log: list[float]) -> Callable[[float], OperatingPoint]:
    def execute(tau: float) -> OperatingPoint:
        log.append(tau)
        rate = rate_of(tau)
        return OperatingPoint(llm_call_rate=rate, success=0.5 + rate / 2, cost=1 + 29 * rate)

    return execute


@pytest.mark.parametrize("target", [0.05, 0.1, 0.2, 0.4])
def test_match_rate_reaches_the_realised_rate(target: float) -> None:
    """The share of scores above tau is 1 - tau; half of it is realised, and that share counts."""
    log: list[float] = []
    choice = match_rate(played(lambda tau: (1 - tau) / 2, log), SCORES, target)
    assert len(log) <= 7
    assert target - 0.01 <= choice.outcome.llm_call_rate <= target + 0.005
    assert [tau for tau, _ in choice.evaluated] == log


def test_match_rate_keeps_the_best_point_where_rates_are_not_monotone() -> None:
    log: list[float] = []
    rate = lambda tau: 0.0 if tau >= 1 else 0.19 if tau == 0.8 else 0.3 if 0.35 < tau < 0.5 else 0.1  # noqa: E731
    choice = match_rate(played(rate, log), SCORES, 0.2)
    assert log[0] == 0.8 and {rate(tau) for tau in log} == {0.1, 0.19, 0.3}
    assert choice.tau == 0.8 and choice.outcome.llm_call_rate == 0.19


def test_match_rate_without_a_feasible_score_never_asks() -> None:
    log: list[float] = []
    choice = match_rate(played(lambda tau: float(tau < 1), log), SCORES, 0.1, max_executions=3)
    assert choice.tau == 1.0 and choice.outcome.llm_call_rate == 0.0 and len(log) == 4


def test_match_rate_at_the_ends_and_without_scores() -> None:
    log: list[float] = []
    assert match_rate(played(lambda tau: float(tau < 1), log), [], 0.0).tau == 1.0
    assert match_rate(played(lambda tau: 1 - tau, log), SCORES, 1.0, max_executions=12).tau < 0.01


@pytest.mark.parametrize("target", [0.05, 0.2, 0.4])
def test_a_temperature_changes_scores_and_no_decision(target: float) -> None:
    """Hence no ablation of the temperature: the threshold is found by rank, so it moves with the scores."""

    def asked(temperature: float) -> list[bool]:
        scores = [1 / (1 + math.exp(-math.log(score / (1 - score)) / temperature)) for score in SCORES]
        rate = lambda tau: sum(score >= tau for score in scores) / len(scores)  # noqa: E731
        tau = match_rate(played(rate, []), scores, target).tau
        return [score >= tau for score in scores]

    assert asked(1.0) == asked(0.5) == asked(3.0)
    assert sum(asked(1.0)) / len(SCORES) == pytest.approx(target, abs=0.01)


def test_hoeffding_bentkus_known_answers() -> None:
    assert hoeffding_bentkus(0.0, 10, 0.5) == pytest.approx(0.5**10), "Hoeffding: exp(-10 ln 2)"
    assert hoeffding_bentkus(0.1, 10, 0.5) == pytest.approx(
        min(math.exp(-10 * (0.1 * math.log(0.2) + 0.9 * math.log(1.8))), math.e * 11 / 1024)
    )
    assert hoeffding_bentkus(0.6, 10, 0.5) == 1.0


def test_the_smaller_of_the_two_bounds_is_taken() -> None:
    """10 losses of 100 against .2: Hoeffding gives .02550, Bentkus e * P(Bin(100, .2) <= 10) = .01548."""
    assert hoeffding_bentkus(0.1, 100, 0.2) == pytest.approx(0.01548, abs=5e-6)
    divergence = 0.1 * math.log(0.5) + 0.9 * math.log(1.125)
    assert math.exp(-100 * divergence) == pytest.approx(0.02550, abs=5e-6)
    assert hoeffding_bentkus(0.29, 100, 0.4) == pytest.approx(math.e * 0.014775, abs=1e-5), "29 losses, not 30"


def test_a_p_value_is_at_most_one_and_all_losses_prove_nothing() -> None:
    assert hoeffding_bentkus(0.2, 10, 0.2) == 1.0
    assert hoeffding_bentkus(1.0, 10, 0.999) == hoeffding_bentkus(1.0, 10, 1.0) == 1.0
    assert hoeffding_bentkus(0.0, 1, 0.9) == pytest.approx(0.1)


def test_match_rate_takes_what_is_within_the_tolerance_and_the_better_success_of_two() -> None:
    """Two thresholds with one rate: the first that is played, .75, succeeds less often."""
    success = {0.25: 0.7, 0.75: 0.6}

    def execute(tau: float) -> OperatingPoint:
        return OperatingPoint(llm_call_rate=0.0 if tau >= 1 else 0.1, success=success.get(tau, 0.0), cost=1.0)

    choice = match_rate(execute, [0.25, 0.5, 0.75], 0.2)
    assert (choice.tau, choice.outcome.success) == (0.25, 0.7)
    assert [tau for tau, _ in choice.evaluated] == [0.75, 0.25, 0.0]
    log: list[float] = []
    edge = match_rate(played(lambda tau: 0.25, log), [0.5], 0.1875, tolerance=0.0625)
    assert edge.tau == 0.5 and log == [0.5], "as near as the tolerance is near enough"


def test_match_rate_plays_beyond_its_last_execution_only_where_nothing_was_within() -> None:
    log: list[float] = []
    rates = {0.0: 0.9, 0.25: 0.8, 0.5: 0.2049, 0.75: 0.1, 1.0: 0.0}
    choice = match_rate(played(rates.__getitem__, log), [0.25, 0.5, 0.75], 0.2, tolerance=0.001, max_executions=2)
    assert log == [0.75, 0.25] and choice.tau == 0.75
    log.clear()
    rates[0.75] = 0.3
    choice = match_rate(played(rates.__getitem__, log), [0.25, 0.5, 0.75], 0.2, tolerance=0.001, max_executions=1)
    assert log == [0.75, 1.0] and choice.tau == 1.0


@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("by", ["llm_call_rate", "cost"])
def test_searches_of_a_method_learn_from_one_another_and_meet_low_targets_too(power: float, by: Spending) -> None:
    """Spending that falls as a power of the share of scores above: four targets, each within 5 %, in 7 rounds."""
    log: list[tuple[str, float]] = []

    def play(asked: Sequence[tuple[str, float]]) -> list[OperatingPoint]:
        log.extend(asked)
        rates = [0.6 * (1 - tau) ** power for _, tau in asked]
        return [OperatingPoint(llm_call_rate=rate, success=0.0, cost=0.03 * rate) for rate in rates]

    targets = {("r2v", f"{rate:g}"): rate * (1 if by == "llm_call_rate" else 0.03) for rate in (0.05, 0.1, 0.2, 0.45)}
    alone = OperatingPoint(llm_call_rate=0.0, success=0.0, cost=0.0)
    searches = {point: RateSearch(SCORES, target, by=by, alone=alone) for point, target in targets.items()}
    found = search_together(searches, play)
    for point, target in targets.items():
        assert 0.95 * target <= getattr(found[point].outcome, by) <= target + max(0.005, 0.02 * target)
    assert len(log) == len(set(log)) <= 20, "none is played twice"


def test_a_method_that_costs_more_than_the_target_wherever_it_asks_never_asks() -> None:
    """Its score alone may cost more than another method altogether; then no threshold keeps to the target."""
    dear = lambda tau: OperatingPoint(llm_call_rate=0.5, success=0.0, cost=2.0)  # noqa: E731
    assert match_rate(dear, SCORES, 1.0, by="cost").tau == 1.0


def test_thresholds_are_tested_from_the_safest_on_and_none_after_the_first_that_fails() -> None:
    safe, unsafe = [0.0] * 50, [1.0] * 50
    assert learn_then_test({0.9: unsafe, 0.1: safe, 0.5: safe}, 0.2, 0.1) == 0.5
    assert learn_then_test({0.1: safe, 0.5: unsafe, 0.9: safe}, 0.2, 0.1) == 0.1
    p = hoeffding_bentkus(0.0, 50, 0.2)
    assert learn_then_test({0.1: safe}, 0.2, p) == 0.1 and learn_then_test({0.1: safe}, 0.2, p * 0.999) is None


THRESHOLDS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
ALPHA, DELTA = 0.2, 0.1


def resplit(number: int, size: int) -> dict[float, list[float]]:
    """Return losses by threshold. Per task a difficulty u: kept on the small policy at tau, a task's loss is 1 where u
    < tau * 0.5. So the true risk at tau is tau / 2, and it exceeds .2 from tau = .5 on."""
    draw = generator("ltt", number)
    tasks = [draw.random() for _ in range(size)]
    return {tau: [float(u < tau * 0.5) for u in tasks] for tau in THRESHOLDS}


def violations(choose: Callable[..., float | None], alpha: float) -> float:
    chosen = [choose(resplit(number, 200), alpha) for number in range(200)]
    return sum(tau is not None and tau / 2 > alpha for tau in chosen) / len(chosen)


def test_learn_then_test_violates_at_most_delta_over_200_resplits() -> None:
    assert violations(partial(learn_then_test, delta=DELTA), ALPHA) <= DELTA
    assert violations(partial(learn_then_test, delta=DELTA), 0.24) <= DELTA, "where the next step is just unsafe"
    kept = [learn_then_test(resplit(number, 400), ALPHA, DELTA) for number in range(50)]
    assert sum(tau is not None and tau >= 0.3 for tau in kept) >= 35, "a guarantee, yet not an empty one"


@pytest.mark.parametrize("unsafe", [3, 4, 5])
@pytest.mark.parametrize("size", [100, 200])
def test_a_guarantee_among_quantiles_of_training_scores_is_violated_at_most_delta(size: int, unsafe: int) -> None:
    """As in the router stage: thresholds are quantiles of training tasks' scores, losses those of calibration tasks.
    Kept on the small policy at tau, a task fails where its difficulty is below tau / 2: that is the true risk, and
    threshold number `unsafe` barely exceeds the allowed one."""
    broken, empty = 0, 0
    for number in range(200):
        draw = generator("guarantee", size, number)
        taus = guarded_thresholds(draw.random() for _ in range(300))[: unsafe + 3]
        tasks, alpha = [draw.random() for _ in range(size)], taus[unsafe] / 2 - 1e-3
        tau = guarantee({tau: [float(u < tau / 2) for u in tasks] for tau in taus}, alpha, DELTA).tau
        broken += tau is not None and tau / 2 > alpha
        empty += not tau
    assert broken <= DELTA * 200
    assert empty < 100, "a guarantee, yet not an empty one"


def test_what_half_of_the_executed_tasks_promises_holds_for_the_other_half() -> None:
    """400 corridors of three doors, .8 against .99, routed at random and executed once at each threshold; 200 times the
    guarantee comes from one half and is checked on the other."""
    chain = ChainBenchmark(num_tasks=400, length=3)
    on, some = chain_stage(chain, (0.8, None), 0.99), specs(chain, 400)
    taus = guarded_thresholds(index / 100 for index in range(101))[:6]
    failed = {
        tau: [float(not episode.success) for episode in on.play(some, on.routed(random_gate, tau))] for tau in taus
    }
    assert sum(failed[taus[0]]) / 400 < ALPHA < sum(failed[taus[-1]]) / 400, "safe at one end, unsafe at the other"
    broken, promised = 0, 0
    for number in range(200):
        order = generator("halves", number).sample(range(400), 400)
        half, rest = order[:200], order[200:]
        tau = guarantee({tau: [failed[tau][task] for task in half] for tau in taus}, ALPHA, DELTA).tau
        promised += tau is not None and tau > 0
        broken += tau is not None and sum(failed[tau][task] for task in rest) / len(rest) > ALPHA
    assert broken <= DELTA * 200 and promised > 100


def test_a_guarantee_says_what_it_rests_on_or_why_there_is_none() -> None:
    safe, unsafe = [0.0] * 100, [1.0] * 100
    promised = guarantee({0.0: safe, 0.5: safe, 0.9: unsafe}, 0.2, 0.1)
    assert (promised.tau, promised.n, promised.unit) == (0.5, 100, "task")
    assert promised.risks == ((0.0, 0.0), (0.5, 0.0), (0.9, 1.0)) and "at most 0.2 of tasks fail" in promised.verdict
    assert "the LLM itself fails more" in guarantee({0.0: unsafe}, 0.2, 0.1).verdict
    assert "5 tasks are too few" in guarantee({0.0: [0.0] * 5}, 0.2, 0.1).verdict
    assert guarded_thresholds([0.0, 1.0]) == [0.0]
    assert len(guarded_thresholds(index / 100 for index in range(101))) == GUARDED


def test_nothing_can_be_promised_from_five_tasks() -> None:
    assert learn_then_test(resplit(0, 5), ALPHA, DELTA) is None


def test_a_target_in_dollars_is_met_within_two_percent() -> None:
    def execute(tau: float) -> OperatingPoint:
        return OperatingPoint(llm_call_rate=0.5, success=0.0, cost=0.01 * (1 - tau))

    choice = match_rate(execute, [index / 200 for index in range(201)], 0.004, by="cost")
    assert 0.0039 < choice.outcome.cost <= 0.004 * 1.02
    dear = match_rate(execute, [0.1, 0.2], 0.004, by="cost")
    assert dear.tau == 1.0 and dear.outcome.cost == 0, "what costs too much everywhere is never asked"


OWN = PlacedScore(tau=0.4, outcome=OperatingPoint(llm_call_rate=0.2, success=0.6, cost=0.01))


def compared(difference: float, error: float) -> PlacedScore:
    outcome = OperatingPoint(llm_call_rate=0.2, success=0.6 + difference, cost=0.01)
    return PlacedScore(tau=0.5, outcome=outcome, difference=difference, standard_error=error)


def test_another_score_acts_only_where_it_is_ahead_by_the_margin_and_a_standard_error() -> None:
    for difference, error, score in (
        (0.0, 0.0, OURS),
        (MARGIN, 0.0, OURS),
        (MARGIN + 0.001, 0.0, "entropy_router"),
        (0.08, 0.08, OURS),
        (0.08, 0.07, "entropy_router"),
        (-0.5, 0.0, OURS),
    ):
        choice = ScoreChoice.of(OWN, {"entropy_router": compared(difference, error)}, 60)
        assert choice.score == score and choice.acting.tau == (0.4 if score == OURS else 0.5)


def test_the_farthest_ahead_acts_and_the_first_of_equals() -> None:
    figures = {name: compared(0.1, 0.01) for name in ALTERNATIVES}
    assert ScoreChoice.of(OWN, figures, 60).score == ALTERNATIVES[0]
    figures["sequence_logprob_router"] = compared(0.11, 0.01)
    choice = ScoreChoice.of(OWN, figures, 60)
    assert choice.score == "sequence_logprob_router"
    assert choice.text().startswith("sequence_logprob_router acts: on 60 calibration tasks r2v 0.600, disagreement")
    assert ScoreChoice.of(OWN, {}, 60).score == OURS


def test_the_standard_error_is_of_the_difference_paired_by_task() -> None:
    own = {"a": 0.0, "b": 1.0, "c": 0.5, "lost": 1.0}
    other = {"a": 1.0, "b": 1.0, "c": 1.0, "elsewhere": 0.0}
    mean, error = paired(own, other)
    assert mean == pytest.approx(0.5) and error == pytest.approx(0.5 / math.sqrt(3))  # of 1, 0 and .5
    assert paired({"a": 0.0}, {"a": 1.0}) == (0.0, math.inf), "one task has no standard error"


def test_a_score_whose_signal_is_absent_is_no_alternative() -> None:
    assert set(ALTERNATIVES) <= METHODS.keys()
    assert available(["page.obs_changed"]) == ("disagreement_router",)
    assert available(["uncertainty.entropy_max", "uncertainty.logprob_sum"]) == ALTERNATIVES
