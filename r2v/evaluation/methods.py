"""The cast of an evaluation: every method as an actor, over the same models, the same world and one memory.

    cast = Cast.of(cfg, policy=..., verifier=..., router=...)
    episodes = cast.play("r2v", plays, tau=0.4)
    choice = match_rate(lambda tau: cast.realised("entropy_router", calibration, tau), scores, 0.2)

Methods that share a history share its replies, so ten methods cost little more than two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from r2v.config import (
    CostConfig,
    EnvConfig,
    InferenceConfig,
    PerturbationsConfig,
    PolicyConfig,
    RolloutConfig,
    TeacherConfig,
)
from r2v.data.episode import Episode
from r2v.envs.base import load_benchmark
from r2v.errors import EmptyResult, UsageError
from r2v.llm.waves import Waves
from r2v.log import Progress
from r2v.rollout.actors import Actor, BestOfK, Routed, Single
from r2v.rollout.counterfactual import play_oracle
from r2v.rollout.gates import ScoreGate, Sensors
from r2v.rollout.model_factory import engine, policy_side, teacher_side, verifier_scorer
from r2v.rollout.session import Play, World, play_many
from r2v.router.baselines import score_function
from r2v.router.models import RouterModel, load
from r2v.router.thresholds import Outcome

ROUTERS = ("random_router", "entropy_router", "entropy_nonfree_router", "verifier_router", "disagreement_router", "r2v")
"""Methods that decide by a threshold on a score."""


class Sections(Protocol):
    """The configuration a cast is made from; every stage that plays has these."""

    env: EnvConfig
    teacher: TeacherConfig
    policy: PolicyConfig
    perturbations: PerturbationsConfig
    inference: InferenceConfig
    cost: CostConfig
    rollout: RolloutConfig


@dataclass
class Cast:
    """Models, world and routers, ready to play."""

    waves: Waves
    world: World
    slm: Single
    hire: Callable[[], Single]
    """Brings the LLM in."""
    sensors: Sensors
    inference: InferenceConfig
    routers: dict[str, RouterModel] = field(default_factory=dict)
    variants: dict[str, Single] = field(default_factory=dict)
    """Other policies by method name, e.g. slm_bc_only."""

    @classmethod
    def of(
        cls,
        cfg: Any,
        *,
        policy: Path | None,
        verifier: Path | None = None,
        router: Path | None = None,
        variants: dict[str, Path | None] | None = None,
        num_samples: int = 0,
        journal: Path | None = None,
    ) -> Cast:
        """Load what is given: exported policies, a verifier, a folder of routers. `journal`: the folder that
        remembers what a provider was asked and paid."""
        sections: Sections = cfg
        benchmark, waves = load_benchmark(sections.env.benchmark, sections.env.options), engine(sections.rollout)

        def side(weights: Path | None) -> Single:
            return Single(
                policy_side(sections.policy, weights, sections.cost, sections.inference, sections.rollout, waves), "slm"
            )

        slm = side(policy)
        scorer = (
            None
            if verifier is None
            else verifier_scorer(sections.policy, verifier, sections.inference, sections.rollout, waves)
        )
        return cls(
            waves=waves,
            world=World(benchmark, sections.perturbations, sections.inference),
            slm=slm,
            hire=lambda: Single(
                teacher_side(sections.teacher, sections.cost, benchmark, waves, journal), "llm_fallback"
            ),
            sensors=Sensors(sections.inference, verifier=scorer, slm=slm.side, num_samples=num_samples),
            inference=sections.inference,
            routers={}
            if router is None
            else {name: load(router / f"{name}.json") for name in ("r2v", "disagreement_router")},
            variants={name: side(weights) for name, weights in (variants or {}).items()},
        )

    @cached_property
    def llm(self) -> Single:
        """The LLM, opened where somebody first asks it: who has no use for one needs no key."""
        return self.hire()

    def actor(self, method: str, tau: float | None = None) -> Actor:
        """The method as an actor; routed ones at threshold `tau`."""
        if method in ROUTERS:
            if tau is None:
                raise UsageError(f"{method} needs a threshold")
            gate = ScoreGate(score_function(method, self.routers), self.sensors)
            return Routed(self.slm.side, self.llm.side, gate, tau, self.inference.max_llm_calls)
        if method == "best_of_k" and self.inference.num_candidates > 1:
            return self._best_of_k()
        if method == "llm_only":
            return self.llm
        own: dict[str, Actor] = {"slm_only": self.slm, "best_of_k": self.slm, **self.variants}
        if method not in own:
            raise UsageError(
                f"evaluation.methods: {method} cannot be played here; allowed: "
                f"{', '.join([*own, 'llm_only', *ROUTERS, 'oracle_router'])}"
            )
        return own[method]

    def _best_of_k(self) -> BestOfK:
        if self.sensors.verifier is None:
            raise UsageError("best_of_k needs a verifier")
        return BestOfK(self.slm.side, self.sensors.verifier, self.inference, self.inference.num_candidates)

    def play(self, method: str, plays: Sequence[Play], tau: float | None = None, what: str = "") -> list[Episode]:
        """The method's episodes, in the order of `plays`."""
        plays = [replace(play, method=method) for play in plays]
        if method == "oracle_router":
            return self._play_oracle(plays, what)
        return play_many(self.waves, self.world, plays, self.actor(method, tau), what=what)

    def _play_oracle(self, plays: Sequence[Play], what: str) -> list[Episode]:
        with Progress(what, len(plays)) as bar:
            return self.waves.run(
                (partial(play_oracle, self.world, play, self.slm, self.llm, self.waves) for play in plays),
                lambda *_: bar.advance(),
            )

    def realised(self, method: str, plays: Sequence[Play], tau: float) -> Outcome:
        """What routing at `tau` comes to when it is executed."""
        return outcome_of(self.play(method, plays, tau))

    def scores(self, method: str, episodes: Sequence[Episode]) -> list[float]:
        """The router scores that were recorded along these episodes."""
        return [
            step.decision.p_escalate
            for episode in episodes
            for step in episode.steps
            if step.decision is not None and step.decision.p_escalate is not None
        ]


def outcome_of(episodes: Sequence[Episode]) -> Outcome:
    """Shares and cost of played episodes; those that a world's fault ended are not counted."""
    played = [episode for episode in episodes if episode.env_fault is None]
    if not played:
        raise EmptyResult(f"all {len(episodes)} calibration episodes ended in a fault of the world")
    steps = sum(len(episode.steps) for episode in played)
    calls = sum(step.action_source == "llm_fallback" for episode in played for step in episode.steps)
    return Outcome(
        llm_call_rate=calls / max(1, steps),
        cost=sum(e.total_cost for e in played) / len(played),
        success=sum(e.success for e in played) / len(played),
    )
