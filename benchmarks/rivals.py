"""Baseline routers that `benchmarks/students.py` plays beside r2v, each placed as r2v is.

Those of `r2v.router.baselines`, and

    margin                the least margin between the two likeliest tokens of the proposal (UCCI, arXiv 2605.18796)
    agreement             K further samples of the small policy: the share that differs from the proposal, free
                          arguments ignored; ties are ordered by the entropy. The samples are billed
    whole_episode         RouteLLM (arXiv 2406.18665), Hybrid-LLM (2404.14618): predicts from the goal alone that the
                          small policy's episode will fail, and routes whole episodes. It learns from the tasks of
                          round 0 alone: in later rounds a router plays, and the outcome of the small policy alone is
                          unknown
    fitted_q              2502.04576: fitted Q iteration over the recorded transitions, success less a price per asking;
                          the target of the action not taken is its executed outcome. It sees its calls so far
    judge                 AutoMix (2310.11962) with the best possible judge: for the price of its prompt as billed and
                          a word, the LLM reads conversation and proposal and answers if it would act the same

SWE-Router (`benchmarks/swe_router.py`) and Switchyard as shipped (`benchmarks/switchyard_peer.py`) have modules of
their own. Learned baselines are fitted on r2v's own rows, of training and calibration tasks.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from benchmarks.routing_tree import EVER, Family, Judged, Method, Node, Rival, RoutingTree, own_score
from r2v.config import Config, RouterConfig
from r2v.config.methods import OURS
from r2v.evaluation.measures.statistics import FloatArray
from r2v.router.baselines import FIXED_SCORES, Instruments
from r2v.router.case_support import CASE_SCORE, NEIGHBOURS
from r2v.router.features import select
from r2v.router.labels import FeatureRow, LabelKind, disagrees, labelled
from r2v.router.models import BoostedModel, CaseSupportModel, sigmoid
from r2v.router.thresholds import FEWEST_TASKS, OperatingPoint, PlacedScore, ScoreChoice, available
from r2v.router.training import exported_tree, fit, fit_routers, matrix

GOAL_WORDS = 48
"""Buckets that the words of a goal are hashed into."""
ROUNDS_OF_Q = 8
"""Bellman backups: about the number of decisive steps of an episode."""
PRICE_OF_ASKING = 0.1
"""Price of one LLM step, in successes."""
WITHOUT = "without "
"""Begins the name of r2v fitted without a group of features."""
BLEND, GAIN = "r2v, blend without choice", "r2v, gain alone"
WITH_CASES, CASE_SUPPORT = "r2v, blend with case support", "case_support alone"
"""Parts of r2v that are played on their own."""
CALLS_SO_FAR = "progress.llm_calls_used_fraction"
"""The feature for the share of used LLM calls, which `fitted_q` always reads."""


def rivals(config: Config, rows: Sequence[FeatureRow], goals: Mapping[str, str]) -> dict[str, Method]:
    """Return name -> method, r2v the first. `goals`: goals of the rows' tasks by id."""
    cfg, seed = config.router, config.seed
    first = [row for row in rows if row.round == 0]
    blend, disagreement = fit_routers(rows, cfg, seed)
    scores = [
        _of_features("disagreement", disagreement.predict),
        *(_fixed(name) for name in FIXED_SCORES),
        _learned("round 0 alone", first, "counterfactual", replace(cfg, model="logistic"), seed),
        Rival(name="whole_episode", judged=_whole_episode(first, goals, cfg, seed), stays=EVER),
        _of_features("fitted_q", fitted_q(rows, cfg, seed).score),
        Rival(name="margin", judged=_margin),
        Rival(name="agreement", judged=_agreement),
        Rival(name="judge", judged=_judge(config)),
    ]
    named = {score.name: score for score in scores}
    alternatives = available(rows[0].features) if cfg.choose_score else ()
    others = [named[name.removesuffix("_router")] for name in alternatives]
    ours = Family(name=OURS, members=(_of_features(BLEND, blend.predict), *others), prefer=preferred)
    return {OURS: ours, **named}


def preferred(members: Mapping[str, Mapping[str, Any]], num_tasks: int) -> str:
    """Return the name of the score that the product acts by (`r2v.router.thresholds`)."""
    own, *others = members

    def outcome(name: str) -> OperatingPoint:
        return OperatingPoint(**{field.name: members[name][field.name] for field in fields(OperatingPoint)})

    if num_tasks < FEWEST_TASKS:
        return own
    compared = {
        name: PlacedScore(
            tau=members[name]["tau"],
            outcome=outcome(name),
            difference=members[name]["difference"],
            standard_error=members[name]["standard_error"],
        )
        for name in others
    }
    choice = ScoreChoice.of(PlacedScore(tau=members[own]["tau"], outcome=outcome(own)), compared, num_tasks)
    return own if choice.score == OURS else choice.score


def is_part(name: str) -> bool:
    """True for a part of r2v, or r2v without a part; these are no baselines."""
    return name.startswith(WITHOUT) or name in (BLEND, GAIN, WITH_CASES, CASE_SUPPORT)


def parts(config: Config, rows: Sequence[FeatureRow], ours: Method) -> dict[str, Method]:
    """Return parts of r2v on their own, for the ablation rows (`PARTS` of `benchmarks/students_table.py`): the blend,
    the gain alone and, if the rows have it, case support."""
    cfg, seed = config.router, config.seed
    methods: dict[str, Method] = {
        BLEND: own_score(ours),
        GAIN: _learned(GAIN, rows, "counterfactual", cfg, seed),
    }
    if CASE_SCORE[0] in rows[0].features:
        with_cases = fit_routers(rows, replace(cfg, features=[*cfg.features, "cases"]), seed)[0]
        alone = CaseSupportModel(steps=NEIGHBOURS)
        methods[WITH_CASES] = _of_features(WITH_CASES, with_cases.predict)
        methods[CASE_SUPPORT] = _of_features(
            CASE_SUPPORT, lambda features: sigmoid(alone.predict([features[name] for name in CASE_SCORE]))
        )
    return methods


def without_groups(config: Config, rows: Sequence[FeatureRow]) -> dict[str, Method]:
    """Return r2v's own score without each group of its features, fitted again on the same rows and labels."""
    cfg, methods = config.router, {}
    for group in cfg.features:
        left = replace(cfg, features=[other for other in cfg.features if other != group])
        name = f"{WITHOUT}{group}"
        methods[name] = _of_features(name, fit_routers(rows, left, config.seed)[0].predict)
    return dict(methods)


def _learned(name: str, rows: Sequence[FeatureRow], label: LabelKind, cfg: RouterConfig, seed: int) -> Rival:
    fitted = fit(labelled(rows, label, cfg.canary_price), replace(cfg, label=label), seed)
    return _of_features(name, fitted.predict)


async def features_of(tree: RoutingTree, node: Node, instruments: Instruments) -> tuple[dict[str, float], float]:
    """Return the features of these instruments, and their cost in USD in addition to the proposal's."""
    if ("features", instruments) not in node.known:
        act = await tree.kept(node)
        assert node.view is not None and act.proposal is not None
        measured = await tree.runner.extractor.measure(node.view, act.proposal, instruments)
        node.known["features", instruments] = measured.features, measured.bill.cached_cost
    cached: tuple[dict[str, float], float] = node.known["features", instruments]
    return cached


def _of_features(name: str, score: Callable[[Mapping[str, float]], float]) -> Rival:
    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        features, read = await features_of(tree, node, Instruments())
        return score(features), read

    return Rival(name=name, judged=judged)


def _fixed(name: str) -> Rival:
    instruments = Instruments(verifier=name == "verifier_router")

    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        features, read = await features_of(tree, node, instruments)
        assert node.view is not None
        return FIXED_SCORES[name](features, node.view.seed, node.view.task_id, node.view.step), read

    return Rival(name=name.removesuffix("_router"), judged=judged)


async def _margin(tree: RoutingTree, node: Node) -> tuple[float, float]:
    act = await tree.kept(node)
    assert act.proposal is not None
    return 1 - min(act.proposal.samples[0].margins), 0.0


async def _agreement(tree: RoutingTree, node: Node) -> tuple[float, float]:
    features, read = await features_of(tree, node, Instruments(samples=True))
    doubt = 1 - math.exp(-features["uncertainty.entropy_max"])
    return 0.9 * (1 - features["samples.support"]) + 0.1 * doubt, read


def _judge(config: Config) -> Judged:
    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        own, other = await tree.kept(node), await tree.asked(node)
        assert own.proposal is not None and node.view is not None
        unwritten = (other.bill.tokens.llm_out - 1) * config.cost.llm.output / 1e6  # the judge answers a word
        read = other.bill.cached_cost - unwritten
        features, _ = await features_of(tree, node, Instruments())
        doubt = 1 - math.exp(-features["uncertainty.entropy_max"])
        differs = disagrees(own.proposal.text, other.text, node.view.tools)
        return 0.9 * differs + 0.1 * doubt, read

    return judged


def goal_features(goal: str) -> dict[str, float]:
    """Return hashed words of a goal, once each."""
    words = {zlib.crc32(word.encode()) % GOAL_WORDS for word in re.findall(r"[a-z]+", goal.lower())}
    return {f"page.goal{bucket:02d}": float(bucket in words) for bucket in range(GOAL_WORDS)}


def _whole_episode(first: Sequence[FeatureRow], goals: Mapping[str, str], cfg: RouterConfig, seed: int) -> Judged:
    starts = [replace(row, features=goal_features(goals[row.task_id])) for row in first if row.step_idx == 0]
    settings = replace(cfg, label="episode", model="logistic", features=["page"], l2=0.1)
    model = fit(labelled(starts, "episode"), settings, seed)

    async def judged(tree: RoutingTree, node: Node) -> tuple[float, float]:
        assert node.view is not None
        if node.view.step:
            return 0.0, 0.0
        return model.predict(goal_features(tree.spec.task.goal)), 0.0

    return judged


@dataclass(frozen=True)
class QRouter:
    """Q of asking less Q of keeping, each boosted regression trees."""

    names: tuple[str, ...]
    keep: BoostedModel
    ask: BoostedModel
    scale: float

    def score(self, features: Mapping[str, float]) -> float:
        """Return the advantage of asking, squashed into (0, 1)."""
        x = [features[name] for name in self.names]
        return sigmoid((self.ask.predict(x) - self.keep.predict(x)) / self.scale)


def fitted_q(rows: Sequence[FeatureRow], cfg: RouterConfig, seed: int) -> QRouter:
    """Run fitted Q iteration with r2v's boosting on r2v's training rows.

    A transition is a recorded step: its actor and the next step. The target of the action taken is the larger Q of the
    next step, or the episode's success at the last one; that of the other action, which has no recorded successor, is
    the success of its executed continuation. Each asking costs `PRICE_OF_ASKING`.
    """
    train = [row for row in rows if row.split == "train"]
    train.sort(key=lambda row: (row.round, row.episode_id, row.step_idx))
    names = tuple(sorted({*select(train[0].features, cfg.features), CALLS_SO_FAR}))
    x, llm_acted = matrix(train, names), np.array([int(row.actor != "slm") for row in train])
    episodes = [(row.round, row.episode_id) for row in train]
    last = np.array([a != b for a, b in zip(episodes, [*episodes[1:], None], strict=True)])
    outcomes = np.array([[row.q_slm, row.q_llm] for row in train], float)  # (rows, 2): of keeping, of asking
    acted = np.arange(len(train)), llm_acted
    ends = outcomes[acted]
    value = ends  # initial values are Monte Carlo returns of the recorded policy
    for _ in range(ROUNDS_OF_Q):
        followed = outcomes.copy()
        followed[acted] = np.where(last, ends, np.roll(value, -1))
        goal = followed - [0.0, PRICE_OF_ASKING]
        keep, ask = _regression(x, goal[:, 0], seed), _regression(x, goal[:, 1], seed)
        ahead = np.array([[model.predict(vector) for vector in x.tolist()] for model in (ask, keep)])
        value = ahead.max(axis=0).clip(-1, 1)
    return QRouter(names, keep, ask, float(np.std(ahead[0] - ahead[1])) or 1.0)


def _regression(x: FloatArray, y: FloatArray, seed: int) -> BoostedModel:
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(
        n_estimators=60, max_depth=3, min_samples_leaf=20, init="zero", random_state=seed
    ).fit(x, y)
    trees = tuple(map(exported_tree, model.estimators_[:, 0]))
    return BoostedModel(intercept=0.0, rate=model.learning_rate, trees=trees)
