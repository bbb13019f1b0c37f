"""Stage 8, evaluation: every method plays every evaluation task under every condition, and the tables are built.

    r2v evaluate --config configs/mrp.yaml --seeds 1 2 3 4 5 --methods r2v slm_only llm_only entropy_router

Routers are compared at equal spending: each one's threshold is placed by executing it on calibration tasks until it
costs as much as r2v, in USD as billed: at the router's own point (main table), and where r2v's share of LLM steps is
one of `evaluation.budgets` (frontier). Episodes are in the cache, so an interrupted evaluation resumes, and one of
other seeds, methods or budgets plays only the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING

from r2v.config.methods import ORACLE, OURS
from r2v.data.store import write_episodes
from r2v.errors import InputError
from r2v.evaluation.calibration import CALIBRATION, PLAYS, ROUTER
from r2v.evaluation.settings import EVALUATE_VERSION, EvaluateSettings, never_branched
from r2v.evaluation.setup import MAIN, CalibrationRecord
from r2v.log import logger
from r2v.router.thresholds import ALTERNATIVES
from r2v.stages import Stage
from r2v.stages.accept_policy import published_policy
from r2v.stages.train_policy import TASKS
from r2v.stages.verifier_training import LABELS, trained
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import git_commit
from r2v.storage.files import replacing, write_json
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.evaluation.acting.calibration import ExecutedPlays
    from r2v.evaluation.acting.methods import MethodRunner
    from r2v.evaluation.setup import RouterScores
    from r2v.rollout.session import EpisodeSpec
    from r2v.rollout.work_queue import Cell


@dataclass(frozen=True, kw_only=True)
class PlayedEvaluation:
    """Episodes of an evaluation, all played."""

    runner: MethodRunner
    specs: dict[str, list[EpisodeSpec]]
    """By condition."""
    calibration: dict[str, CalibrationRecord]
    """<method>@<point> -> threshold and realised outcome."""
    calibration_plays: ExecutedPlays | None
    cells: dict[str, Cell]
    """By the file of their episodes, below the results."""
    gains: dict[str, Cell]
    """By condition."""


def play(cfg: EvaluateSettings, work: Work) -> PlayedEvaluation:
    """Place thresholds and play the missing episodes; write only plays."""
    from r2v.evaluation.setup import GAINS

    cfg = _without_missing_verifier(cfg, work)
    runner = _runner(cfg, work)
    specs = {name: cfg.specs(runner.world.benchmark, name) for name in cfg.selections}
    if work.inputs:
        _refuse_training_tasks(work, specs)
    calibration, plays = _calibration(cfg, runner, work) if cfg.routed else ({}, None)
    cells = _cells(cfg, runner, specs, calibration)
    gained = (
        {name: cfg.limited(runner.world.benchmark, group, GAINS) for name, group in specs.items()} if cfg.scored else {}
    )
    gains = {name: _gain_cell(cfg, runner, name, group, calibration) for name, group in gained.items()}
    runner.player.play([*cells.values(), *gains.values()], "evaluation")
    return PlayedEvaluation(
        runner=runner, specs=specs, calibration=calibration, calibration_plays=plays, cells=cells, gains=gains
    )


def run(cfg: EvaluateSettings, work: Work) -> None:
    """Place thresholds, play, and write the tables."""
    from r2v.evaluation.claims import headline
    from r2v.evaluation.setup import (
        Setup,
        branches_file,
        choices_of,
        episodes_file,
        plain_calibration,
        write_setup,
    )
    from r2v.evaluation.tables.build import write_results_folder
    from r2v.serve.bundle.domain import benchmark_domain

    played, cfg = play(cfg, work), _without_missing_verifier(cfg, work)
    runner, specs = played.runner, played.specs
    if played.calibration_plays is not None:
        records = {name: plain_calibration(record) for name, record in played.calibration.items()}
        write_json(work.folder / CALIBRATION, records)
        played.calibration_plays.write(work.folder / PLAYS)
        copy_router_plays(work.inputs["router"], work.folder)
    faults = sum(_write_cell(runner, cell, work.folder / file) for file, cell in played.cells.items())
    for condition in specs if ORACLE in cfg.evaluation.played else ():
        tried = _branches(runner, played.cells[episodes_file(condition, ORACLE)])
        write_episodes(work.folder / branches_file(condition, ORACLE), tried)
    scores = _router_scores(cfg, runner, played.gains, work.folder)
    write_setup(
        work.folder,
        Setup(
            **cfg.recorded(),
            benchmark_version=runner.world.benchmark.version,
            tasks={name: list(dict.fromkeys(spec.task.task_id for spec in group)) for name, group in specs.items()},
            never_branched=never_branched(runner.world.benchmark, specs),
            router_scores=tuple(scores),
            choices=choices_of(played.calibration),
            domain=benchmark_domain(runner.world.benchmark),
            git_commit=git_commit(),
        ),
    )
    tables = write_results_folder(work.folder)
    for line in headline(tables.bundle()):
        logger.info("  evaluated: headline=%s", line)
    thresholds = {name: record.tau for name, record in played.calibration.items()}
    work.summary.update(n_episodes=tables.n_episodes, n_env_faults=faults, thresholds=thresholds)


def copy_router_plays(router: Artifact, folder: Path) -> None:
    """Copy the plays of the router stage into a results folder, over those of a killed attempt."""
    for name in (name for name in router.files if name.startswith(f"{PLAYS}/")):
        path = folder / PLAYS / ROUTER / name.removeprefix(f"{PLAYS}/")
        with router.file(name).open("rb") as source, replacing(path) as target:
            copyfileobj(source, target)


def _without_missing_verifier(cfg: EvaluateSettings, work: Work) -> EvaluateSettings:
    """Return the settings, without the methods and features of a verifier if none was trained."""
    if "verifier" not in work.inputs or trained(work.inputs["verifier"]) is not None or not cfg.asks_verifier:
        return cfg
    possible = cfg.without_verifier
    lacking = [name for name in cfg.evaluation.methods if name not in possible.evaluation.methods]
    lacking += ["features of the verifier"] * cfg.router.reads_verifier
    logger.warning("  evaluation without a verifier: left_out=%s", ", ".join(lacking))
    return possible


def _runner(cfg: EvaluateSettings, work: Work) -> MethodRunner:
    from r2v.evaluation.acting.methods import MethodRunner

    if not work.inputs:  # methods of untrained models alone
        runner = MethodRunner.of(cfg, work, policy=None, logprobs=False)
        runner.variants["slm_base"] = runner.slm
        return runner
    variants = {"slm_bc_only": work.inputs["bc"].file("final"), "slm_base": None} if "bc" in work.inputs else {}
    return MethodRunner.of(
        cfg,
        work,
        policy=published_policy(work),
        verifier=trained(work.inputs.get("verifier")) if cfg.asks_verifier else None,
        router=work.inputs["router"].folder,
        num_samples=cfg.router.num_samples(cfg.inference),
        variants={name: path for name, path in variants.items() if name in cfg.evaluation.played},
        logprobs=cfg.reads_logprobs,
    )


def _refuse_training_tasks(work: Work, specs: dict[str, list[EpisodeSpec]]) -> None:
    """Raise InputError where an evaluation task was trained on, under whichever split."""
    from r2v.router.case_support import CaseIndex
    from r2v.router.labels import read_rows
    from r2v.verifier.labels import read_examples

    features = work.inputs["router_features"].file("router_features.jsonl")
    learnt = {features: {row.task_id for row in read_rows(features)}}
    if "bc" in work.inputs:
        cloned = work.inputs["bc"].file(TASKS)
        learnt[cloned] = set(json.loads(cloned.read_text()))
    if "case_support" in work.inputs:
        cases = work.inputs["case_support"].folder
        learnt[cases] = set(CaseIndex.load(cases).tasks)
    labels = work.inputs["verifier"].file(LABELS) if "verifier" in work.inputs else None
    if labels is not None and labels.exists():  # a judge learns from none
        learnt[labels] = {example.task_id for example in read_examples(labels)}
    evaluated = {spec.task.task_id for group in specs.values() for spec in group}
    for path, tasks in learnt.items():
        if shared := sorted(tasks & evaluated):
            raise InputError(
                f"{path}: task {shared[0]} is to be evaluated but was learnt from ({len(shared)} such); "
                "evaluate with the data.split_seed of the training, or train again with this one"
            )


def _calibration(
    cfg: EvaluateSettings, runner: MethodRunner, work: Work
) -> tuple[dict[str, CalibrationRecord], ExecutedPlays]:
    """Return every threshold (`r2v.evaluation.calibration`) and the plays by which it was placed."""
    from r2v.evaluation.acting.calibration import ExecutedPlays
    from r2v.evaluation.calibration import RecordedPlays, RouterStates, calibrate

    placed = work.inputs["router"].folder / PLAYS
    plays = ExecutedPlays(runner, cfg.calibration_specs(runner.world.benchmark))
    routers = RecordedPlays.read(placed, (OURS, *ALTERNATIVES))
    records = calibrate(cfg, plays, routers, RouterStates.read(placed))
    for name, record in records.items():
        method, _, point = name.partition("@")
        logger.info(
            "  threshold placed: method=%s point=%s tau=%.4f llm_steps=%.1f%% usd_per_episode=%.4f",
            *(method, point, record.tau, 100 * record.llm_call_rate, record.cost),
        )
    return records, plays


def _cells(
    cfg: EvaluateSettings,
    runner: MethodRunner,
    specs: dict[str, list[EpisodeSpec]],
    calibration: dict[str, CalibrationRecord],
) -> dict[str, Cell]:
    """Return file, below the results -> its episodes, of all methods, points and conditions."""
    from r2v.evaluation.setup import FRONTIER, OPERATING_POINT, episodes_file

    cells = {}
    for condition in cfg.selections:
        places = [(method, MAIN) for method in cfg.evaluation.played]
        places += [(method, point) for method in cfg.routed for point in cfg.points]
        for method, point in places:
            file = episodes_file(condition, method, point)
            extra = {} if point == MAIN else {OPERATING_POINT: point}
            limited = cfg.limited(runner.world.benchmark, specs[condition], method if point == MAIN else FRONTIER)
            cell_specs = [replace(spec, extra=extra) for spec in limited]
            chosen = calibration.get(f"{method}@{point}")
            tau, score = (None, None) if chosen is None else (chosen.tau, chosen.score)
            cells[file] = runner.cell(method, cell_specs, tau, what=file, score=score)
    return cells


def _write_cell(runner: MethodRunner, cell: Cell, path: Path) -> int:
    """Write a cell's episodes in the order of their ids, one at a time in memory; return the number not measured."""
    from r2v.rollout.work_queue import log_faults

    ordered = _by_identity(runner, cell)
    solved, faults = 0, list[str]()

    def episodes() -> Iterator[Episode]:
        nonlocal solved
        for episode, *_ in runner.player.records(ordered):
            solved += episode.success
            if episode.env_fault is not None:
                faults.append(episode.env_fault)
            yield episode

    count = write_episodes(path, episodes())
    name = path.name.removesuffix(".jsonl.zst")
    logger.info("  cell played: condition=%s cell=%s succeeded=%d/%d", cell.specs[0].condition, name, solved, count)
    log_faults(cell.what, faults, count)
    return len(faults)


def _gain_cell(
    cfg: EvaluateSettings,
    runner: MethodRunner,
    condition: str,
    specs: Sequence[EpisodeSpec],
    calibration: dict[str, CalibrationRecord],
) -> Cell:
    """Return the cell of executed gains of LLM steps, along the method `gains_along`, which continues the branches."""
    placed = calibration.get(f"{OURS}@{MAIN}")
    tau = None if placed is None else placed.tau
    method, what = cfg.gains_along(tau), f"{condition} gains"
    along = [replace(spec, method=method) for spec in specs]
    if method == OURS:
        score = (None if placed is None else placed.score) or OURS
        return runner.feature_cell(along, what, tau=tau, score=score, number=cfg.gains_round, keep_branches=True)
    return runner.feature_cell(along, what, keep_branches=True)


def _router_scores(
    cfg: EvaluateSettings, runner: MethodRunner, gains: dict[str, Cell], folder: Path
) -> list[RouterScores]:
    """Return each router's scores and the executed gains at the same steps (`_gain_cell`), for ECE, Brier and AUROC.
    The gains are written to gains/; no threshold or model is chosen by them."""
    from r2v.evaluation.setup import GAINS, RouterScores, branches_file
    from r2v.rollout.stage_rollouts.features import rows_of
    from r2v.rollout.work_queue import measured
    from r2v.router.baselines import score_function
    from r2v.router.labels import read_rows, write_rows

    scores = []
    for condition, cell in gains.items():
        path = folder / "gains" / f"{condition}.jsonl"
        # `spent` is a figure of training rounds: an evaluation records it nowhere else, so an audit could not check it
        write_rows(path, (replace(row, spent=0.0) for row in rows_of(measured(cell, runner.player))))
        rows = read_rows(path)
        write_episodes(folder / branches_file(condition, GAINS), _branches(runner, cell))
        seeds = {runner.world.identity_of(spec): spec.seed for spec in cell.specs}
        for method in cfg.routed:
            score = score_function(method, runner.routers)
            p = [score(row.features, seeds[row.episode_id], row.task_id, row.step_idx) for row in rows]
            scores.append(RouterScores.of(method, condition, rows, p))
    return scores


def _branches(runner: MethodRunner, cell: Cell) -> Iterator[Episode]:
    """Yield the measured episodes of a cell as they are stored, each followed by its branches."""
    from r2v.data.episode import Episode, with_hashed_observations
    from r2v.rollout.episode_cache import fault_of

    for records in runner.player.records(_by_identity(runner, cell)):
        if fault_of(records) is None:
            first, *branches = (record for record in records if isinstance(record, Episode))
            yield with_hashed_observations(first)
            yield from branches


def _by_identity(runner: MethodRunner, cell: Cell) -> Cell:
    return replace(cell, specs=sorted(cell.specs, key=runner.world.identity_of))


STAGE = Stage(version=EVALUATE_VERSION, settings=EvaluateSettings, run=run, play=play)
