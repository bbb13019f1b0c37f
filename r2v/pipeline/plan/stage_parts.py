"""Parts of each stage: its episodes, requests and training under a configuration, counted as its code makes them.

    for part in parts_of("evaluate", config, facts):
        print(part.name, part.total.episodes, part.total.steps)

A part is counted exactly if outcomes do not change it: the planned episodes, branches, resets, steps and requests are
executed, given episodes of the pace's length. Otherwise (the thresholds of a bisection, the second branch of an oracle)
the plan is an upper bound, and `at_most` has the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from r2v.config import Config, PhaseName
from r2v.envs.base import WORLDLESS
from r2v.pipeline.graph import as_configured
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts
from r2v.pipeline.plan.plan_inputs import Part, PlanInputs
from r2v.pipeline.plan.workload import UNCOUNTED, Workload, branches, branches_at_most, episode
from r2v.pipeline.rows import named
from r2v.router.thresholds import ALTERNATIVES, FEWEST_TASKS, GUARDED, MOST_PLAYED
from r2v.stages.generate_router_features import PLACING_PLAYS


def parts_of(stage: str, config: Config, facts: BenchmarkFacts) -> tuple[Part, ...]:
    """Return the parts of a stage; none for one that plays, asks and trains nothing."""
    counted = as_configured(config, job(stage)).parts
    parts: Sequence[Part] = named(counted)(PlanInputs(config, facts)) if counted else ()
    return tuple(part for part in parts if part.total.steps or part.total.llm or part.total.trained)


def _training(
    inputs: PlanInputs, phase: PhaseName, rows: float, *, times: float = 1.0, reference: bool = False
) -> Part:
    """Return a phase's training on full rows, `times` over; `reference`: another model reads each row once."""
    settings, longest = inputs.config.training.phase(phase), inputs.config.policy.max_seq_len
    drawn = rows if settings.max_examples is None else min(rows, settings.max_examples)
    return Part(
        name="training",
        total=Workload(trained=drawn * longest * settings.num_epochs * times, read=drawn * longest * reference),
        unit=Workload(),  # a stop loses the updates since the last checkpoint
        remedy=f"training.{phase}.num_epochs, training.{phase}.max_examples",
    )


def bc(inputs: PlanInputs) -> Sequence[Part]:
    """Return the training on a row for each cloned episode: collected ones, and twins under each perturbation seed."""
    data = inputs.config.data
    twins = len(data.perturbation_seeds.train) if data.condition == "noisy" else 0
    collected = inputs.facts.of_split("train", data.num_episodes) * len(data.seeds)
    return [_training(inputs, "bc", collected * (twins + inputs.config.perturb.include_clean))]


def hierarchical(inputs: PlanInputs) -> Sequence[Part]:
    """Return uncounted training: its rollouts depend on the learnt actor."""
    return [Part(name="training", total=UNCOUNTED, unit=Workload())]


def collect(inputs: PlanInputs) -> Sequence[Part]:
    """Return the teacher's episodes."""
    data, steps = inputs.config.data, inputs.teacher_steps
    play = inputs.with_tokens(episode(steps, llm=1), steps)
    tasks, seeds = inputs.facts.of_split("train", data.num_episodes), len(data.seeds)
    alone = inputs.alone("train", data.num_episodes)
    return [inputs.played("teacher", play, tasks, seeds, alone=alone, remedy="data.num_episodes, data.seeds")]


def perturb(inputs: PlanInputs) -> Sequence[Part]:
    """Return the episodes played again under perturbations."""
    config, steps = inputs.config, inputs.teacher_steps
    if config.env.benchmark in WORLDLESS or "reroll" not in config.perturb.constructions:
        return []
    if not config.perturbations.active(config.data.condition):
        return []
    play = inputs.with_tokens(episode(steps, llm=1), steps)
    tasks = inputs.facts.of_split("train", config.data.num_episodes)
    each = len(config.data.seeds) * len(config.data.perturbation_seeds.train)
    alone = inputs.alone("train", config.data.num_episodes)
    why = "only episodes that succeeded are played again"
    remedy = "perturb.constructions, data.perturbation_seeds.train"
    return [inputs.played("re-roll", play, tasks, each, alone=alone, at_most=why, remedy=remedy)]


def verifier(inputs: PlanInputs) -> Sequence[Part]:
    """Return the labels, and the training of one verifier on all tasks and of one for each fold on the other folds'
    tasks: together `num_folds` trainings on all tasks. Values of temporal differences are learnt before, likewise."""
    labels, folds = inputs.config.verifier, inputs.config.candidates.num_folds
    rows = inputs.facts.of_split("train", labels.num_tasks) * (1 + labels.num_corruptions)
    values = labels.label_sources == ["td"] and labels.mode == "trained"
    return [*_labels(inputs), _training(inputs, "verifier", rows, times=folds * (1 + values))]


def _labels(inputs: PlanInputs) -> Sequence[Part]:
    """Return the requests to a judge, and the executed corrupted actions."""
    config, facts, steps = inputs.config, inputs.facts, inputs.teacher_steps
    labels = config.verifier
    (source,) = labels.label_sources
    free = config.teacher.provider == "scripted" and facts.deterministic
    tasks = facts.of_split("train", labels.num_tasks)
    questions = Workload(llm=steps + labels.num_corruptions)
    if labels.mode == "llm_judge" or source == "judge":
        play = inputs.with_tokens(questions.times(len(config.data.seeds)), steps)
        why = "a recording may suggest fewer wrong actions"
        return [Part(name="judge", total=play.times(tasks), unit=play, at_most=why, remedy="verifier.num_tasks")]
    if not (source in ("corrupted", "consensus") or (source == "auto" and free)):
        return []
    wrong = branches_at_most(steps, count=labels.num_corruptions, copies=facts.copies, llm=1)
    play = inputs.with_tokens(episode(steps, llm=1) + wrong, steps)
    executed = facts.branched_of_split("train", labels.num_tasks)
    executed += facts.branched_of_split("calibration", labels.num_tasks // 3)
    judged = inputs.with_tokens(questions, steps)
    why = "an episode may suggest fewer wrong actions"
    confirmed = Part(name="judge", total=judged.times(executed), unit=judged, at_most=why, remedy="verifier.num_tasks")
    why = "wrong actions are played on from steps that are drawn, of successes alone"
    remedy = "verifier.num_tasks, verifier.num_corruptions"
    corrupted = inputs.played("corruptions", play, executed, 1, at_most=why, remedy=remedy)
    return [confirmed, corrupted] if source == "consensus" else [corrupted]


def candidates(inputs: PlanInputs) -> Sequence[Part]:
    """Return the roll-outs with a branch for each candidate action."""
    facts, steps = inputs.facts, inputs.student_steps
    drawn = inputs.config.candidates.resolved(inputs.config.teacher.provider)
    texts = drawn.num_samples + drawn.with_teacher
    tried = texts if facts.pace.branched is None else min(facts.pace.branched, texts)
    roll_out = episode(steps, student=1, samples=drawn.num_samples, llm=drawn.with_teacher, verifier=texts)
    by_teacher = drawn.continuation == "teacher"
    played = branches(steps, each=tried, copies=facts.copies, student=not by_teacher, llm=by_teacher)
    play = inputs.with_tokens(roll_out + played, steps)
    tasks = facts.branched_of_split("train", drawn.num_tasks)
    why = "equal actions of a state are scored and played once"
    remedy = "candidates.num_tasks, candidates.num_samples, candidates.continuation"
    return [inputs.played("candidates", play, tasks, 1, at_most=why, remedy=remedy)]


def preference(inputs: PlanInputs) -> Sequence[Part]:
    """Return the training on pairs, of two rows each, and the comparison of the trained with the cloned policy."""
    chosen = inputs.config.preference
    if not chosen.enabled:
        return []
    pairs = inputs.facts.branched_of_split("train", inputs.config.candidates.num_tasks) * chosen.max_pairs_per_task
    return [_training(inputs, "preference", 2 * pairs, reference=True), *_acceptance(inputs)]


def _acceptance(inputs: PlanInputs) -> Sequence[Part]:
    """Return the episodes of the trained and of the cloned policy on calibration tasks."""
    config, steps = inputs.config, inputs.student_steps
    chosen, limit = config.preference, config.preference.accept_tasks
    if chosen.accept == "always" or config.env.benchmark in WORLDLESS:
        return []
    play = inputs.with_tokens(episode(steps, student=1), steps)
    tasks, seeds = inputs.facts.of_split("calibration", limit), len(chosen.accept_seeds)
    alone, why = inputs.alone("calibration", limit), "nothing is played where there is nothing to learn"
    remedy = "preference.accept_tasks, preference.accept_seeds, preference.accept=always"
    return [inputs.played("acceptance", play, tasks, seeds, times=2, alone=alone, at_most=why, remedy=remedy)]


def features_of_episode(inputs: PlanInputs, *, verifier: bool | None = None) -> Workload:
    """Return a roll-out of the small policy with a branch at each disagreement of the LLM; `verifier` as `observed`."""
    steps = inputs.student_steps
    played = branches(steps, each=inputs.facts.pace.differing, copies=inputs.facts.copies, student=1)
    return inputs.with_tokens(observed(inputs, steps, llm=1, verifier=verifier) + played, steps)


def routed_features_of_episode(inputs: PlanInputs, *, verifier: bool | None = None) -> Workload:
    """Return the same of the routed pair, whose router also acts, and may ask the LLM, at every step of a branch."""
    config, steps = inputs.config, inputs.student_steps
    played = branches(steps, each=inputs.facts.pace.differing, copies=inputs.facts.copies, student=1, llm=1)
    samples = config.router.num_samples(config.inference)
    scored = 1 + samples if config.router.reads_verifier else 0
    played = replace(played, verifier=played.student * scored, drawn=played.student * (1 + samples))
    return inputs.with_tokens(observed(inputs, steps, llm=2, verifier=verifier) + played, steps)


def observed(inputs: PlanInputs, steps: float, *, llm: float = 0, verifier: bool | None = None) -> Workload:
    """Return an episode of the small policy with features at every step: samples, and the verifier's scores of the
    proposals (None: if the router reads them). The score of the step before is remembered."""
    samples = inputs.config.router.num_samples(inputs.config.inference)
    scored = 1 + samples if (inputs.config.router.reads_verifier if verifier is None else verifier) else 0
    return episode(steps, student=1, samples=samples, llm=llm, verifier=scored)


def _rounds(inputs: PlanInputs) -> Sequence[Part]:
    """Return the placing of rounds' thresholds, and their roll-outs, whose branches the router continues."""
    settings, facts = inputs.config.router, inputs.facts
    if not settings.routed_rounds:
        return []
    seeds, calibration = len(settings.seeds), settings.num_calibration_tasks
    plays = 1 + len(settings.round_budgets) * (PLACING_PLAYS + 1)
    placing, placed = routed(inputs, 1.0), facts.of_split("calibration", calibration)
    play = routed_features_of_episode(inputs)
    tasks = facts.branched_of_split("train", settings.round_tasks)
    tasks += facts.branched_of_split("calibration", calibration)
    why = "the LLM's share is what thresholds are placed for, and bisections may end early"
    return [
        inputs.played(
            "thresholds of rounds",
            placing,
            placed,
            seeds,
            times=plays * settings.routed_rounds,
            shared=True,
            alone=inputs.alone("calibration", calibration),
            at_most=why,
            remedy="router.rounds, router.num_calibration_tasks",
        ),
        inputs.played(
            "rounds",
            play,
            tasks,
            seeds,
            times=settings.routed_rounds,
            at_most=why,
            remedy="router.rounds, router.round_tasks",
        ),
    ]


def router_features(inputs: PlanInputs) -> Sequence[Part]:
    """Return the roll-outs with executed counterfactuals."""
    settings, play = inputs.config.router, features_of_episode(inputs)
    tasks = sum(
        inputs.facts.branched_of_split(split, limit)
        for split, limit in (("train", settings.num_tasks), ("calibration", settings.num_calibration_tasks))
    )
    remedy = "router.num_tasks, router.num_calibration_tasks"
    return [inputs.played("features", play, tasks, len(settings.seeds), remedy=remedy), *_rounds(inputs)]


def recorded_states(inputs: PlanInputs) -> Sequence[Part]:
    """Return uncounted requests at recorded states: only the records have their number."""
    return [Part(name="recorded states", total=UNCOUNTED, unit=Workload())]


def routed(inputs: PlanInputs, share: float, *, verifier: bool | None = None) -> Workload:
    """Return an episode with this share of LLM steps; `verifier` as `observed`."""
    steps, most = inputs.student_steps, inputs.config.inference.max_llm_calls
    calls = share * steps if most is None else min(share * steps, most)
    return inputs.with_tokens(observed(inputs, steps, llm=calls / steps if steps else 0, verifier=verifier), steps)


def plays_of_thresholds(points: int) -> int:
    """Return the most plays of the calibration tasks to place one method's thresholds at so many operating points: one
    to score, one at threshold 1, and one for each point in each round of the search."""
    return 2 + points * MOST_PLAYED if points else 0


def plays_of_choice(inputs: PlanInputs, points: int) -> int:
    """Return the most plays of the calibration tasks to choose r2v's score at so many operating points."""
    settings = inputs.config.router
    tasks = inputs.facts.of_split("calibration", settings.num_calibration_tasks)
    chooses = settings.choose_score and not tasks < FEWEST_TASKS  # nan, an unknown number, may be enough
    return len(ALTERNATIVES) * plays_of_thresholds(points) if chooses else 0


def router(inputs: PlanInputs) -> Sequence[Part]:
    """Return the search for the threshold."""
    settings, play = inputs.config.router, routed(inputs, 1.0)
    tasks, seeds = inputs.facts.of_split("calibration", settings.num_calibration_tasks), len(settings.seeds)
    guarded = 0 if settings.max_risk is None else GUARDED
    return [
        inputs.played(
            "threshold",
            play,
            tasks,
            seeds,
            times=MOST_PLAYED + 1 + guarded + plays_of_choice(inputs, 1),
            shared=True,
            alone=inputs.alone("calibration", settings.num_calibration_tasks),
            at_most="a bisection may end early, and asks the LLM as the threshold says",
            remedy="router.num_calibration_tasks",
        )
    ]
