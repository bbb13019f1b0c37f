"""Stage 3b, verifier: a step-level model of the success of actions, trained before any policy.

    r2v train_verifier --config configs/mrp.yaml

Labels (`verifier.label_sources`) come from executed corruptions: on training tasks plausible wrong actions replace
steps of the teacher, who then plays to the end. `auto` takes them where worlds fork and a scripted expert makes that
free, else recorded outcomes. `[td]` smooths recorded outcomes by the values of verifiers of other tasks; `[consensus]`
takes executed labels that a judge confirms. With `verifier.mode=llm_judge` the teacher's model judges recorded steps
and plausible wrong ones through its provider, and the head learns its scores: later stages ask the head alone.

One more verifier per fold is trained without that fold's tasks, so that candidates are scored by a verifier that has
not seen their task. Each verifier has its own checkpoints, from which an interrupted run resumes. With several GPUs (or
`training.ranks`) one process for each trains (`r2v.stages.verifier_training`). verifier_report.json measures on
calibration tasks, if their actions are labelled, else on training tasks out of fold (`measured_on`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.config import TeacherConfig, identity, load
from r2v.data.episode import Condition
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.summary_lines import consensus_line, corruptions_line, judge_line, verifier_line
from r2v.stages.verifier_training import (
    LABELS,
    LEFT_OUT,
    VerifierSettings,
    fit_verifiers,
    lacking,
    values_out_of_fold,
)
from r2v.storage.artifact import Work
from r2v.storage.files import write_json
from r2v.storage.integrity import CONFIGURATION

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.envs.base import Benchmark
    from r2v.verifier.labels import VerifierExample


_REPORT = "verifier_report.json"


def run(cfg: VerifierSettings, work: Work) -> None:
    """Make the labels, train, calibrate, and write the report."""
    from r2v.verifier.labels import read_examples, td_examples, write_examples

    labels = work.folder / LABELS
    if not labels.exists():
        examples = _labelled(cfg, work)
        if cfg.verifier.label_sources == ["td"] and not lacking(cfg, examples):
            examples = td_examples(examples, values_out_of_fold(cfg, examples, work), cfg.verifier.gae_lambda)
        write_examples(labels, examples)
    examples = read_examples(labels)
    if reason := lacking(cfg, examples):
        logger.warning("  verifier left out, later stages run without it: reason=%s", reason)
        write_json(work.folder / _REPORT, {LEFT_OUT: reason})
        work.summary.update({"n_examples": len(examples), "report": None, LEFT_OUT: reason})
        return
    report = fit_verifiers(cfg, examples, work)
    write_json(work.folder / _REPORT, report)
    work.summary.update(n_examples=len(examples), report=report)
    logger.info("  verifier trained: figures=%s", verifier_line(report))


def label_source(cfg: VerifierSettings, *, deterministic: bool | None) -> str:
    """Return the source of labels: judge if configured; for auto, corrupted (executed) if a free teacher plays in
    worlds that fork exactly, else outcome. `deterministic`: of the worlds; None if `needs_world` is False."""
    (source,) = cfg.verifier.label_sources
    if cfg.verifier.mode == "llm_judge":
        return "judge"
    if deterministic is None:
        return source
    free = cfg.teacher.provider == "scripted" and deterministic
    return source if source != "auto" else "corrupted" if free else "outcome"


def _labelled(cfg: VerifierSettings, work: Work) -> list[VerifierExample]:
    """Return the examples, labelled by the configured source."""
    from r2v.envs.base import load_benchmark

    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options) if cfg.needs_world else None
    source = label_source(cfg, deterministic=None if benchmark is None else benchmark.capabilities.deterministic)
    logger.info("  labels: source=%s", source)
    if benchmark is not None and source == "corrupted":
        return _executed(cfg, work, benchmark)
    if benchmark is not None and source == "consensus":
        return _agreed(cfg, work, benchmark)
    if source == "judge":
        return _judged(cfg, work)
    examples, cap = _outcomes(cfg, work, source), cfg.teacher.max_usd
    may_play_on = benchmark is not None and benchmark.capabilities.deterministic and cap is not None
    if benchmark is None or not may_play_on or not lacking(cfg, examples):
        return examples
    logger.info("  recorded outcomes alone teach nothing, labels come from corrupted actions: teacher.max_usd=%g", cap)
    return _executed(cfg, work, benchmark)


def _executed(cfg: VerifierSettings, work: Work, benchmark: Benchmark) -> list[VerifierExample]:
    """Return labels from executed corruptions: half of the tasks clean, half under the training perturbations."""
    from r2v.evaluation.acting.method_identity import world_identity
    from r2v.policy.prompt_encoder import build_messages
    from r2v.rollout.actors import GreedyActor
    from r2v.rollout.fork import branchable
    from r2v.rollout.model_factory import Payer, engine, priced_teacher
    from r2v.rollout.session import RolloutWorld, episode_specs
    from r2v.rollout.sites import SitePool
    from r2v.rollout.stage_rollouts.corruptions import CorruptionRollout
    from r2v.rollout.work_queue import BlockPlayer, log_faults
    from r2v.verifier.labels import executed_examples, outcome_examples

    waves = engine(cfg.rollout, benchmark, cfg.teacher)
    teacher = GreedyActor(priced_teacher(cfg.teacher, cfg.cost, benchmark, waves, Payer.of(work)), "teacher")
    conditions: list[Condition] = ["clean"] if cfg.tasks.condition == "clean" else ["clean", "noisy"]
    specs = [
        spec
        for split, count in (("train", cfg.verifier.num_tasks), ("calibration", cfg.verifier.num_tasks // 3))
        for index, spec in enumerate(episode_specs(benchmark, split, [0], cfg.tasks, method="teacher", limit=count))
        for spec in [replace(spec, condition=conditions[index % len(conditions)])]
    ]
    every, specs = len(specs), branchable(benchmark, specs, "corrupted actions")
    sites = SitePool.of(cfg.rollout, benchmark, work.root)
    world = RolloutWorld(benchmark, cfg.perturbations, cfg.inference, sites)
    what = "execute corrupted actions"
    cell = CorruptionRollout(
        world=world,
        teacher=teacher,
        waves=waves,
        per_episode=cfg.verifier.num_corruptions,
        discount=cfg.verifier.discount,
    ).cell(
        specs,
        what=what,
        identity={
            "world": world_identity(cfg, benchmark),
            "llm": [identity(cfg.teacher), identity(cfg.cost.llm_price)],
        },
    )
    player = BlockPlayer.of(waves, work, cfg.rollout)
    player.play([cell], what)
    played = list(player.records(cell))
    episodes, records = [episode for episode, *_ in played], [record for _, *some in played for record in some]
    faults = [episode.env_fault for episode in episodes if episode.env_fault is not None]
    log_faults(what, faults, len(specs))
    work.summary.update(n_env_faults=len(faults), n_never_branched=every - len(specs))
    examples, counts = executed_examples(records)
    logger.info("  labels executed: counts=%s", corruptions_line(counts))
    return [*outcome_examples(episodes, build_messages), *examples]


def _outcomes(cfg: VerifierSettings, work: Work, source: str) -> list[VerifierExample]:
    """Return labels from the recorded episodes' outcomes; for `td`, every step of a failed episode has the target 0."""
    from r2v.policy.prompt_encoder import build_messages
    from r2v.verifier.labels import blamed, outcome_examples

    episodes = DataRegistry(work.root / "data").iter_episodes(work.inputs["collect"].summary["run_ids"])
    failed = blamed if source == "outcome" else lambda left: 0.0
    return outcome_examples(map(_executed_one, episodes), build_messages, failed=failed)


def _executed_one(episode: Episode) -> Episode:
    """Return the episode. Raise InputError if it was imported, for its outcome was not executed."""
    if not episode.executed:
        raise InputError(
            f"run {episode.metadata.run_id}: episode {episode.episode_id} was imported: its outcome was not executed; "
            "collect episodes in a benchmark, or let a judge label it (verifier.mode=llm_judge)"
        )
    return episode


def _agreed(cfg: VerifierSettings, work: Work, benchmark: Benchmark) -> list[VerifierExample]:
    """Return the executed labels that a judge confirms."""
    from r2v.verifier.labels import consensus_examples

    examples = _executed(cfg, work, benchmark)
    confirmed, counts = consensus_examples(examples, _opinions(cfg, work, examples))
    logger.info("  labels confirmed: counts=%s", consensus_line(counts))
    work.summary.update(consensus=counts)
    return confirmed


def _judged(cfg: VerifierSettings, work: Work) -> list[VerifierExample]:
    """Return labels from a judge's scores of the recorded steps and of wrong alternatives."""
    from r2v.policy.prompt_encoder import build_messages
    from r2v.verifier.judge_labels import steps_to_judge
    from r2v.verifier.labels import judged_examples

    episodes = DataRegistry(work.root / "data").iter_episodes(work.inputs["collect"].summary["run_ids"])
    examples = steps_to_judge(
        episodes, build_messages, num_tasks=cfg.verifier.num_tasks, per_episode=cfg.verifier.num_corruptions
    )
    return judged_examples(examples, _opinions(cfg, work, examples))


def _opinions(cfg: VerifierSettings, work: Work, examples: Sequence[VerifierExample]) -> Sequence[float | None]:
    """Return the judge's score of each example, or None; each request is paid once, the likely cost logged before."""
    from r2v.llm.providers.teacher import teacher_rate
    from r2v.llm.waves import Waves
    from r2v.rollout.model_factory import Payer, judge_of
    from r2v.verifier.judge_labels import ask_all, asked, figures, price

    registry = DataRegistry(work.root / "data")
    runs = [registry.get(run_id) for run_id in work.inputs["collect"].summary["run_ids"]]
    teacher = judge_teacher(cfg.teacher, runs, work.folder.parent)
    waves = Waves(workers=1, max_conversations=max(1, len(examples)))
    judge = judge_of(teacher, waves, Payer.of(work))
    cost = price(judge.unanswered(map(asked, examples)), teacher_rate(teacher))
    logger.info("  judge will be asked: requests=%s", cost)
    opinions = ask_all(judge, examples, waves)
    record = {"judge": {"provider": teacher.provider, "model": teacher.model_name}, **figures(examples, opinions)}
    write_json(work.folder / "judge_report.json", record)
    logger.info("  judge answered: figures=%s", judge_line(record))
    return opinions.scores


STAGE = Stage(version=2, settings=VerifierSettings, run=run)


def judge_teacher(teacher: TeacherConfig, runs: Sequence[RunManifest], artifacts: Path) -> TeacherConfig:
    """Return the judge of these runs: the configured teacher, else the teacher of the runs. artifacts: the folder of
    the artifacts that the runs' fingerprints name.

    Raise UsageError where no provider is configured and the runs name none, or several; InputError where the
    collection's settings are missing.
    """
    if teacher.provider != "scripted":
        return teacher
    collectors = {run.run_id: _collected_by(run, artifacts) for run in runs}
    for run_id, collector in collectors.items():
        if collector is None:
            raise UsageError(
                f"verifier.mode=llm_judge: teacher.provider is {teacher.provider}, and run {run_id} was "
                "collected by no provider's model either; set teacher.provider to openai, anthropic or a provider of "
                "your own"
            )
    others = list(collectors.values())
    if any(other != others[0] for other in others):
        raise UsageError(
            f"verifier.mode=llm_judge: runs {', '.join(collectors)} were collected under different teacher.*; name the "
            "judge by teacher.provider and teacher.model_name"
        )
    given = {
        item.name: value
        for item in dataclasses.fields(teacher)
        if (value := getattr(teacher, item.name)) != getattr(TeacherConfig(), item.name)
    }
    assert others[0] is not None
    judge = dataclasses.replace(others[0], **given)
    changed = ",".join(f"teacher.{name}" for name in sorted(given)) or "none"
    logger.info(
        "  judge chosen, as the run was collected: model=%s provider=%s run=%s overridden=%s",
        *(judge.model_name, judge.provider, runs[0].run_id, changed),
    )
    return judge


def _collected_by(run: RunManifest, artifacts: Path) -> TeacherConfig | None:
    """Return the teacher's settings of a run; None if it was no provider's model."""
    if run.imported or run.provider == "scripted":
        return None
    path = artifacts / f"collect-{run.fingerprint}" / CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"{path}: missing, so that it is not known how run {run.run_id} asked {run.model_name}; put it back, or "
            "set teacher.provider and teacher.model_name"
        )
    return load(path).teacher
