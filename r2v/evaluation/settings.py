"""Evaluation settings: the parts of a configuration that an evaluation depends on, and their record.

The stage plays by them; the audit of a results folder makes them again from config.yaml and holds the folder to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.config import identity
from r2v.config.methods import METHODS, ORACLE, OURS, ROUTERS, STRONG, WEAK
from r2v.evaluation.setup import BRANCHED, FRONTIER, GAINS
from r2v.router.escalation import needs_score
from r2v.router.thresholds import ALTERNATIVES

if TYPE_CHECKING:
    from r2v.envs.base import Benchmark
    from r2v.rollout.session import EpisodeSpec

EVALUATE_STAGE = "r2v.stages.evaluate:STAGE"
"""The stage's name in an artifact."""
EVALUATE_VERSION = 11
"""Raised whenever an evaluation of the same settings and inputs would come out otherwise."""


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """The settings that an evaluation depends on."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    router: c.RouterConfig
    evaluation: c.EvaluationConfig
    calibration: c.TaskSelection
    selections: dict[str, c.TaskSelection]

    @classmethod
    def of(cls, config: c.Config) -> EvaluateSettings:
        """The parts of the whole configuration that are read here."""
        selections = {name: c.TaskSelection.evaluation(config, name) for name in config.evaluation.conditions}
        return c.sections_of(
            cls,
            config,
            calibration=c.TaskSelection.training(config),
            selections=selections,
        )

    @property
    def asks_teacher(self) -> bool:
        """True if a method needs the teacher."""
        return self.evaluation.asks_teacher

    @property
    def reads_base(self) -> bool:
        """True if the policy plays: its base is not read where the teacher plays alone."""
        return not self.policy.is_api and any(method != STRONG for method in self.evaluation.played)

    @property
    def routed(self) -> list[str]:
        """The methods that decide by a threshold on a score, in the order of the tables."""
        return [method for method in self.evaluation.played if method in ROUTERS]

    @property
    def asks_verifier(self) -> bool:
        """True if a method that is played reads the verifier's scores, of which gains then keep rows."""
        return self.evaluation.asks_verifier(self.router)

    @property
    def reads_logprobs(self) -> bool:
        """True if a method that is played, or may act in place of r2v's score, reads log-probabilities."""
        others = ALTERNATIVES if OURS in self.routed and self.router.choose_score else ()
        methods, learnt = [METHODS[name] for name in (*self.routed, *others)], "uncertainty" in self.router.features
        return any(method.reads_probabilities or (learnt and method.trained_router) for method in methods)

    @property
    def without_verifier(self) -> EvaluateSettings:
        """The same as they are played where the verifier was left out: no method reads its scores."""
        methods = [method for method in self.evaluation.methods if not METHODS[method].asks_verifier]
        features = [group for group in self.router.features if group != "verifier"]
        return replace(
            self,
            evaluation=replace(self.evaluation, methods=methods),
            router=replace(self.router, features=features),
        )

    @property
    def points(self) -> list[str]:
        """Names of the frontier's operating points, one for each budget."""
        return list(self.evaluation.operating_points)

    @property
    def scored(self) -> bool:
        """True if gains are executed, by which the routers' scores are judged."""
        return bool(self.routed) and self.evaluation.gains_tasks != 0

    def gains_along(self, threshold: float | None) -> str:
        """The method along whose episodes gains are executed, and which plays on after each step: r2v where its router
        learnt such gains, by rounds, and is asked at `threshold`, that of its main operating point (None: it has none);
        else slm_only."""
        learnt = OURS in self.routed and self.router.routed_rounds > 0
        return OURS if learnt and threshold is not None and needs_score(threshold) else WEAK

    @property
    def gains_round(self) -> int:
        """The round that gains along r2v's episodes are rows of: the one after those that trained its router."""
        return self.router.routed_rounds + 1

    @property
    def limits(self) -> dict[str, int]:
        """Cells that play fewer tasks than the main table (`r2v.evaluation.setup.Setup.limits`)."""
        given = {
            ORACLE: self.evaluation.oracle_tasks,
            FRONTIER: self.evaluation.frontier_tasks,
            GAINS: self.evaluation.gains_tasks,
        }
        return {name: limit for name, limit in given.items() if limit}

    def limited(self, benchmark: Benchmark, specs: Sequence[EpisodeSpec], name: str) -> list[EpisodeSpec]:
        """The episodes of a condition that are played in the cells of this name: those of its first tasks, and where
        they are branched none that changes a world which others share."""
        from r2v.rollout.fork import branchable

        if name in BRANCHED:
            specs = branchable(benchmark, specs, name)
        tasks = list(dict.fromkeys(spec.task.task_id for spec in specs))[: self.limits.get(name)]
        return [spec for spec in specs if spec.task.task_id in set(tasks)]

    def specs(self, benchmark: Benchmark, condition: str) -> list[EpisodeSpec]:
        """The episodes that every method plays under a condition. Raises EmptyResult where there is no task."""
        from r2v.rollout.session import episode_specs

        return episode_specs(
            benchmark,
            "heldout" if condition == "heldout" else "evaluation",
            self.evaluation.seeds,
            self.selections[condition],
            method="",
            limit=self.evaluation.num_tasks,
        )

    def calibration_specs(self, benchmark: Benchmark) -> list[EpisodeSpec]:
        """The episodes on which thresholds are placed. Raises EmptyResult where there is no task."""
        from r2v.rollout.session import episode_specs

        return episode_specs(
            benchmark,
            "calibration",
            self.router.seeds,
            self.calibration,
            method="",
            limit=self.router.num_calibration_tasks,
        )

    def recorded(self) -> dict[str, Any]:
        """The fields of `r2v.evaluation.setup.Setup` that repeat settings."""
        routed, points = self.routed, self.points
        return {
            "benchmark": self.env.benchmark,
            "methods": tuple(self.evaluation.played),
            "seeds": tuple(self.evaluation.seeds),
            "frontier": {name: dict.fromkeys(routed, points) for name in self.selections} if points else {},
            "limits": self.limits,
            "cost_ratio": self.cost.ratio,
            "resamples": self.evaluation.bootstrap,
            "prices": {"slm": asdict(self.cost.slm_price), "llm": asdict(self.cost.llm_price)},
            "models": {"slm": self.policy.model_name, "llm": self.teacher.model_name},
            "world": {
                "env": identity(self.env),
                "perturbations": identity(self.perturbations),
                "inference": identity(self.inference),
            },
            "config_sha256": hashlib.sha256(json.dumps(identity(self), sort_keys=True).encode()).hexdigest(),
        }


def never_branched(benchmark: Benchmark, specs: Mapping[str, Sequence[EpisodeSpec]]) -> list[str]:
    """The evaluation tasks, of any condition, that change a world which others share."""
    from r2v.rollout.fork import changes_shared_world

    tasks = {spec.task.task_id: spec.task for planned in specs.values() for spec in planned}
    return [name for name, task in tasks.items() if changes_shared_world(benchmark, task)]
