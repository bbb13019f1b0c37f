"""The parts of each stage: what it plays and asks under a configuration, counted by what its code does.

    for part in parts_of("evaluate", config, known):
        print(part.name, part.total.episodes, part.total.steps)

A part is counted exactly where outcomes do not change it: as many episodes, branches, resets, steps and questions are
executed as planned, if episodes are as long as the pace says. Where outcomes do (which thresholds a bisection plays,
whether an oracle tries the second branch), the plan is the most that there can be, and `at_most` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from r2v.config import METHODS, Config
from r2v.config.methods import ORACLE, ROUTERS
from r2v.pipeline.plan.known import Known
from r2v.pipeline.plan.price import longest_prompt, mean_prompt
from r2v.pipeline.plan.workload import Workload, branches, branches_at_most, episode

MOST_PLAYS = 7
"""Thresholds that `r2v.router.thresholds.match_rate` plays by default."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of playing in a stage."""

    name: str
    total: Workload
    unit: Workload
    """Of it, what is kept only as a whole: a stop loses at most this. Today a task with all its branches."""
    shared: bool = False
    """Whether its questions to local models are those of other methods and thresholds too (`Pace.remembered`)."""
    at_most: str = ""
    """Why the counts are the most that there can be; empty where they are exact."""
    remedy: str = ""
    """The configuration keys that make it smaller."""


@dataclass(frozen=True)
class _Scene:
    """A configuration over a known benchmark."""

    config: Config
    known: Known

    @property
    def student_steps(self) -> float:
        """Of an episode of the small policy."""
        return self._at_most_allowed(self.known.pace.student_steps)

    @property
    def teacher_steps(self) -> float:
        """Of an episode of the LLM."""
        return self._at_most_allowed(self.known.pace.teacher_steps)

    def _at_most_allowed(self, steps: float | None) -> float:
        longest = self.config.inference.max_steps
        return longest if steps is None else min(steps, longest)

    def with_tokens(self, work: Workload, steps: float) -> Workload:
        """The work with the tokens of its questions, asked along episodes of `steps` steps."""
        pace, policy = self.known.pace, self.config.policy
        shown = policy.max_seq_len - self.config.inference.max_new_tokens
        local = mean_prompt(pace.prompt_tokens, pace.page_tokens, pace.action_tokens, steps, shown)
        remote = mean_prompt(
            pace.prompt_tokens, pace.page_tokens, pace.action_tokens, steps, longest_prompt(self.config)
        )
        return replace(
            work,
            read=(work.student + work.verifier) * local,
            written=work.drawn * min(pace.action_tokens, self.config.inference.max_new_tokens),
            llm_in=work.llm * remote,
            llm_out=work.llm * min(pace.action_tokens, self.config.teacher.max_tokens),
        )


def parts_of(stage: str, config: Config, known: Known) -> tuple[Part, ...]:
    """What a stage plays; nothing for one that plays nothing."""
    count = _STAGES.get(stage)
    return (
        ()
        if count is None
        else tuple(part for part in count(_Scene(config, known)) if part.total.steps or part.total.llm)
    )


def _collect(scene: _Scene) -> Sequence[Part]:
    data, steps = scene.config.data, scene.teacher_steps
    one = scene.with_tokens(episode(steps, llm=1), steps)
    plays = scene.known.of_split("train", data.num_episodes) * len(data.seeds)
    return [Part(name="teacher", total=one.times(plays), unit=one, remedy="data.num_episodes, data.seeds")]


def _perturb(scene: _Scene) -> Sequence[Part]:
    config, steps = scene.config, scene.teacher_steps
    if "reroll" not in config.perturb.constructions or not config.perturbations.active(config.data.condition):
        return []
    one = scene.with_tokens(episode(steps, llm=1), steps)
    plays = scene.known.of_split("train", config.data.num_episodes) * len(config.data.seeds)
    return [
        Part(
            name="re-roll",
            total=one.times(plays * len(config.data.perturbation_seeds.train)),
            unit=one,
            at_most="only episodes that succeeded are played again",
            remedy="perturb.constructions, data.perturbation_seeds.train",
        )
    ]


def _verifier(scene: _Scene) -> Sequence[Part]:
    config, known, steps = scene.config, scene.known, scene.teacher_steps
    verifier = config.verifier
    (source,) = verifier.label_sources
    free = config.teacher.provider == "scripted" and known.deterministic
    tasks = known.of_split("train", verifier.num_tasks)
    if verifier.mode == "llm_judge":
        asked = Workload(llm=steps + verifier.num_corruptions)
        one = scene.with_tokens(asked.times(len(config.data.seeds)), steps)
        why = "a recording may suggest fewer wrong actions"
        return [Part(name="judge", total=one.times(tasks), unit=one, at_most=why, remedy="verifier.num_tasks")]
    if not (source == "corrupted" or (source == "auto" and free)):
        return []
    wrong = branches_at_most(steps, count=verifier.num_corruptions, copies=known.copies, llm=1)
    one = scene.with_tokens(episode(steps, llm=1) + wrong, steps)
    plays = tasks + known.of_split("calibration", verifier.num_tasks // 3)
    return [
        Part(
            name="corruptions",
            total=one.times(plays),
            unit=one,
            at_most="wrong actions are played on from steps that are drawn, of successes alone",
            remedy="verifier.num_tasks, verifier.num_corruptions",
        )
    ]


def _candidates(scene: _Scene) -> Sequence[Part]:
    drawn, known, steps = scene.config.candidates, scene.known, scene.student_steps
    texts = drawn.num_samples + drawn.with_teacher
    tried = texts if known.pace.branched is None else min(known.pace.branched, texts)
    roll_out = episode(steps, student=1, samples=drawn.num_samples, llm=drawn.with_teacher, verifier=texts)
    one = scene.with_tokens(roll_out + branches(steps, each=tried, copies=known.copies, student=1), steps)
    return [
        Part(
            name="candidates",
            total=one.times(known.of_split("train", drawn.num_tasks)),
            unit=one,
            at_most="equal actions of a state are scored and played once",
            remedy="candidates.num_tasks, candidates.num_samples",
        )
    ]


def _features_of_episode(scene: _Scene) -> Workload:
    """A roll-out of the small policy with a branch wherever the LLM acts otherwise."""
    steps, pace = scene.student_steps, scene.known.pace
    played = branches(steps, each=pace.differing, copies=scene.known.copies, student=1)
    return scene.with_tokens(_observed(scene, steps, llm=1) + played, steps)


def _observed(scene: _Scene, steps: float, *, llm: float = 0) -> Workload:
    """An episode of the small policy at whose every step features are taken: samples, if they are of its groups, and
    the verifier's scores of what is proposed. The score of the step before is remembered."""
    groups = scene.config.router.features
    samples = scene.config.inference.num_candidates if "samples" in groups else 0
    return episode(steps, student=1, samples=samples, llm=llm, verifier=1 + samples)


def _router_features(scene: _Scene) -> Sequence[Part]:
    router, one = scene.config.router, _features_of_episode(scene)
    plays = sum(
        scene.known.of_split(split, limit)
        for split, limit in (("train", router.num_tasks), ("calibration", router.num_calibration_tasks))
    )
    return [
        Part(
            name="features",
            total=one.times(plays * len(router.seeds)),
            unit=one,
            remedy="router.num_tasks, router.num_calibration_tasks",
        )
    ]


def _routed(scene: _Scene, share: float) -> Workload:
    """An episode in which this share of the steps goes to the LLM."""
    steps, most = scene.student_steps, scene.config.inference.max_llm_calls
    calls = share * steps if most is None else min(share * steps, most)
    return scene.with_tokens(_observed(scene, steps, llm=calls / steps if steps else 0), steps)


def _router(scene: _Scene) -> Sequence[Part]:
    router, one = scene.config.router, _routed(scene, 1.0)
    plays = scene.known.of_split("calibration", router.num_calibration_tasks) * len(router.seeds)
    return [
        Part(
            name="threshold",
            shared=True,
            total=one.times(plays * (MOST_PLAYS + 1)),
            unit=one,
            at_most="a bisection may end early, and asks the LLM as the threshold says",
            remedy="router.num_calibration_tasks",
        )
    ]


def plays_of_thresholds(points: int) -> int:
    """The most times that calibration tasks are played for one method to place thresholds at so many operating points:
    once to score, once at threshold 1, and the bisections, which begin alike: the n-th play has at most 2^n places."""
    return 2 + sum(min(2**depth, points) for depth in range(MOST_PLAYS)) if points else 0


def _evaluate(scene: _Scene) -> Sequence[Part]:
    evaluation = scene.config.evaluation

    def plays(limit: int | None = None) -> float:
        sizes = [
            scene.known.of_split("heldout" if name == "heldout" else "evaluation", evaluation.num_tasks)
            for name in evaluation.conditions
        ]
        return sum(size if limit is None else min(limit, size) for size in sizes) * len(evaluation.seeds)

    routed = [name for name in evaluation.played if name in ROUTERS]
    parts = [_thresholds(scene, routed), _main(scene, plays())]
    if ORACLE in evaluation.played:
        parts.append(_oracle(scene, plays(evaluation.oracle_tasks)))
    if routed:
        parts.append(_frontier(scene, plays(evaluation.frontier_tasks), len(routed)))
        parts.append(_gains(scene, plays(evaluation.gains_tasks)))
    return parts


def _thresholds(scene: _Scene, routed: Sequence[str]) -> Part:
    router, points = scene.config.router, len(scene.config.evaluation.operating_points)
    plays = sum(plays_of_thresholds(points + (name != "r2v")) for name in routed)
    one = _routed(scene, 1.0)
    tasks = scene.known.of_split("calibration", router.num_calibration_tasks) * len(router.seeds)
    return Part(
        name="thresholds",
        shared=True,
        total=one.times(tasks * plays),
        unit=one,
        at_most="a bisection may end early, and asks the LLM as the threshold says",
        remedy="evaluation.methods, evaluation.budgets, router.num_calibration_tasks",
    )


def _main(scene: _Scene, played: float) -> Part:
    methods = [name for name in scene.config.evaluation.played if name != ORACLE]
    each = [_method(scene, name) for name in methods]
    return Part(
        name="main table",
        shared=True,
        total=sum((one.times(played) for one in each), Workload()),
        unit=max(each, key=lambda one: one.steps, default=Workload()),
        at_most="the LLM's share is what thresholds are placed for" if set(methods) & set(ROUTERS) else "",
        remedy="evaluation.methods, evaluation.conditions, evaluation.seeds, evaluation.num_tasks",
    )


def _method(scene: _Scene, name: str) -> Workload:
    """One episode by a method that is no oracle."""
    if name in ROUTERS:
        return _routed(scene, scene.config.router.budget)
    if name == "llm_only":
        return scene.with_tokens(episode(scene.teacher_steps, llm=1), scene.teacher_steps)
    steps, samples = scene.student_steps, scene.config.inference.num_candidates
    if name == "best_of_k" and samples > 1:
        return scene.with_tokens(episode(steps, samples=samples, verifier=samples), steps)
    assert name in METHODS
    return scene.with_tokens(episode(steps, student=1), steps)


def _oracle(scene: _Scene, played: float) -> Part:
    steps, known = scene.student_steps, scene.known
    tried = branches(steps, each=2 * known.pace.differing, copies=known.copies, student=1)
    one = scene.with_tokens(episode(steps, student=1, llm=1) + tried, steps)
    return Part(
        name="oracle_router",
        total=one.times(played),
        unit=one,
        at_most="the LLM's branch is played only where the small policy's fails",
        remedy="evaluation.oracle_tasks",
    )


def _frontier(scene: _Scene, played: float, routed: int) -> Part:
    each = [_routed(scene, budget) for budget in scene.config.evaluation.operating_points.values()]
    return Part(
        name="frontier",
        shared=True,
        total=sum((one.times(played * routed) for one in each), Workload()),
        unit=max(each, key=lambda one: one.llm, default=Workload()),
        at_most="the LLM's share is what thresholds are placed for",
        remedy="evaluation.frontier_tasks, evaluation.budgets",
    )


def _gains(scene: _Scene, played: float) -> Part:
    one = _features_of_episode(scene)
    return Part(name="gains", total=one.times(played), unit=one, remedy="evaluation.gains_tasks")


_STAGES: dict[str, Callable[[_Scene], Sequence[Part]]] = {
    "collect": _collect,
    "perturb": _perturb,
    "verifier": _verifier,
    "candidates": _candidates,
    "router_features": _router_features,
    "router": _router,
    "evaluate": _evaluate,
}
