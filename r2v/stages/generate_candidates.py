"""Stage 4, candidates: K sampled actions per state, scored, executed to the end, and paired for preference training.

    r2v generate_candidates --config configs/mrp.yaml --overrides candidates.num_samples=8

States come from the cloned policy's own roll-outs on training tasks. Scores are cross-fitted: the verifier that scores
a task was trained without it. ranking_report.json has the executed gain from choosing by these scores, with two
references: the sample most likely under the policy, which costs nothing, and the sample of the highest executed value,
an upper bound. pairs_report.json counts the states without a pair by reason. Without any, the clone is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from statistics import fmean
from typing import TYPE_CHECKING

from r2v import config as c
from r2v.config import identity
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.summary_lines import pairs_line, ranking_line
from r2v.storage.artifact import Work
from r2v.storage.files import write_json

if TYPE_CHECKING:
    from r2v.policy.candidates import CandidateState
    from r2v.rollout.work_queue import BlockPlayer, Cell


@dataclass(frozen=True, kw_only=True)
class CandidatesSettings:
    """Settings of candidates."""

    env: c.EnvConfig
    teacher: c.TeacherConfig
    policy: c.PolicyConfig
    perturbations: c.PerturbationsConfig
    inference: c.InferenceConfig
    cost: c.CostConfig
    rollout: c.RolloutConfig
    candidates: c.CandidatesConfig
    preference: c.PreferenceConfig
    tasks: c.TaskSelection
    seed: int

    @classmethod
    def of(cls, config: c.Config) -> CandidatesSettings:
        """Return the part of a configuration that candidates read."""
        return c.sections_of(
            cls,
            config,
            inference=config.inference.acting(),
            candidates=config.candidates.resolved(config.teacher.provider),
            preference=config.preference.pairing(),
        )

    @property
    def asks_teacher(self) -> bool:
        """True if the stage sends requests to the teacher."""
        return self.candidates.with_teacher or self.candidates.continuation == "teacher"


def _cell(cfg: CandidatesSettings, work: Work) -> tuple[BlockPlayer, Cell, int]:
    """Return the player, the cell of candidates, and the number of episodes left out because they may not branch."""
    from r2v.evaluation.acting.method_identity import content_of
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.rollout.fork import branchable
    from r2v.rollout.model_factory import told_tools, verifier_scorer
    from r2v.rollout.session import episode_specs
    from r2v.rollout.stage_rollouts.candidates import CandidateRollout
    from r2v.stages.verifier_training import fold_of, trained

    runner = MethodRunner.of(cfg, work, policy=work.inputs["bc"].file("final"), logprobs=False)
    folds = trained(work.inputs["verifier"], "folds")
    places = [] if folds is None else [folds / str(fold) for fold in range(cfg.candidates.num_folds)]
    tools = told_tools(cfg.policy, runner.world.benchmark)
    scorers = [
        verifier_scorer(cfg.policy, folder, cfg.inference, cfg.rollout, runner.waves, tools) for folder in places
    ]
    benchmark = runner.world.benchmark
    every = episode_specs(benchmark, "train", [cfg.seed], cfg.tasks, method="slm_only", limit=cfg.candidates.num_tasks)
    specs = branchable(benchmark, every, "candidates")
    teacher = runner.llm if cfg.candidates.with_teacher else None
    continuation = runner.llm if cfg.candidates.continuation == "teacher" else runner.slm
    cell = CandidateRollout(
        world=runner.world,
        slm=runner.slm,
        teacher=teacher,
        continuation=continuation,
        scorers=scorers,
        folds=partial(fold_of, num_folds=cfg.candidates.num_folds),
        sampling=cfg.candidates,
        waves=runner.waves,
    ).cell(
        specs,
        what="sample and execute candidates",
        identity=runner.identity.rollouts(
            folds=list(map(content_of, places)),
            sampling=identity(cfg.candidates),
            with_teacher=teacher is not None,
        ),
    )
    return runner.player, cell, len(every) - len(specs)


def play(cfg: CandidatesSettings, work: Work) -> None:
    """Play the missing episodes."""
    player, cell, _ = _cell(cfg, work)
    player.play([cell], cell.what)


def run(cfg: CandidatesSettings, work: Work) -> None:
    """Sample, score, execute and pair."""
    from r2v.policy.candidates import write_states
    from r2v.policy.pairs import make_pairs, why_none, write_pairs
    from r2v.rollout.work_queue import measured

    player, cell, never_branched = _cell(cfg, work)
    logger.info("  candidates continued: actor=%s", cfg.candidates.continuation)
    faults: list[str] = []
    states = [state for states in measured(cell, player, faults) for state in states]
    write_states(work.folder / "candidates.jsonl", states)
    pairs, counts = make_pairs(states, cfg.preference)
    write_pairs(work.folder / "preference_pairs.jsonl", pairs)
    write_json(work.folder / "pairs_report.json", counts)
    ranked = ranking(map(_sampled, states))
    write_json(work.folder / "ranking_report.json", ranked)
    work.summary.update(n_states=len(states), pairs=counts, ranking=ranked, n_env_faults=len(faults))
    work.summary.update(continuation=cfg.candidates.continuation)
    work.summary.update(n_never_branched=never_branched)
    logger.info("  candidates paired: figures=%s", pairs_line(len(states), counts))
    logger.info("  samples ranked by the verifier: figures=%s", ranking_line(ranked))
    if not pairs:
        logger.warning("  candidates gave no pair: reason=%s", why_none(counts, cfg.preference))


def _sampled(state: CandidateState) -> list[SampledAction]:
    """Return the policy's played samples of a state; none if they are all equal, for then none was played."""
    return [
        SampledAction(score=candidate.score, log_prob=candidate.logprob_sum, value=candidate.value)
        for candidate in state.candidates
        if candidate.score is not None and candidate.logprob_sum is not None and candidate.value is not None
    ]


STAGE = Stage(version=3, settings=CandidatesSettings, run=run, play=play)


@dataclass(frozen=True, kw_only=True)
class SampledAction:
    """A sample of a state: the verifier's score, the policy's log-probability of the whole action in nats, and the
    share of its executed continuations that succeed."""

    score: float
    log_prob: float
    value: float


def ranking(states: Iterable[Sequence[SampledAction]]) -> dict[str, float | None]:
    """Return figures over states of K samples each; None for those that need a state whose samples differ in value.

    `within_state_*`: share of pairs of a state's samples in which the better ranks higher, ties counting a half;
    `ties_within_state`: share with equal scores of the verifier. `random_of_k`: mean value of all samples;
    `*_less_random`: gain over it of the sample with the highest score (best), log-probability (most likely) or value
    (oracle, an upper bound), equal ones counting as their mean.
    """
    choices = [samples for samples in states if len({sample.value for sample in samples}) > 1]
    pairs = [
        (better, worse)
        for samples in choices
        for better, worse in permutations(samples, 2)
        if better.value > worse.value
    ]

    def mean(values: Iterable[float]) -> float | None:
        listed = list(values)
        return round(fmean(listed), 6) if listed else None

    def ranked(key: Callable[[SampledAction], float]) -> float | None:
        return mean(0.5 * (1 + (key(better) > key(worse)) - (key(better) < key(worse))) for better, worse in pairs)

    random = [fmean(sample.value for sample in samples) for samples in choices]

    def gain(key: Callable[[SampledAction], float]) -> float | None:
        return mean(_favourite(samples, key) - drawn for samples, drawn in zip(choices, random, strict=True))

    return {
        "states_with_a_choice": len(choices),
        "pairs": len(pairs),
        "within_state_verifier": ranked(lambda sample: sample.score),
        "within_state_log_prob": ranked(lambda sample: sample.log_prob),
        "ties_within_state": mean(float(better.score == worse.score) for better, worse in pairs),
        "random_of_k": mean(random),
        "best_of_k_less_random": gain(lambda sample: sample.score),
        "most_likely_of_k_less_random": gain(lambda sample: sample.log_prob),
        "oracle_of_k_less_random": gain(lambda sample: sample.value),
    }


def _favourite(samples: Sequence[SampledAction], key: Callable[[SampledAction], float]) -> float:
    """Return the mean value of the samples with the highest key."""
    top = max(map(key, samples))
    return fmean(sample.value for sample in samples if key(sample) == top)
