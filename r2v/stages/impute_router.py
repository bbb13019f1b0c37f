"""Imputed routers: stages 6 and 7 where nothing can be executed, as of imported logs.

    r2v generate_router_features --overrides env.benchmark=logs router.label=imputed
    r2v train_router --overrides env.benchmark=logs router.label=imputed

Cloning has left some recorded tasks out. The cloned policy is asked about the teacher's states in them, a label says
whether it would act otherwise, and a router is fitted on these labels. Its threshold is the one above which at most
`router.budget` of the recorded calibration steps lie: a share of records, not of an episode that was played. All of it
is named imputed, in files, summaries and bundles, and no evaluation plays it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.config.evaluation import IMPUTED
from r2v.data.tools import TOOLS_FILE, Tools, read_tools
from r2v.errors import EmptyResult, InputError
from r2v.log import logger
from r2v.stages.summary_lines import imputed_features_line, imputed_router_line
from r2v.stages.train_policy import TASKS
from r2v.storage.artifact import Work
from r2v.storage.files import write_json

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.rollout.actors import StepView
    from r2v.router.labels import FeatureRow
    from r2v.router.models import RouterModel
    from r2v.stages.generate_router_features import RouterFeaturesSettings
    from r2v.stages.train_router import RouterSettings


def impute_features(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Ask the cloned policy at every recorded state of the tasks that it was not cloned from; write their rows."""
    from r2v.envs.base import load_benchmark
    from r2v.policy.training_tools import told
    from r2v.rollout.actors import GreedyActor
    from r2v.rollout.blocks import BlockPlayer
    from r2v.rollout.cells import measured
    from r2v.rollout.gates import FeatureExtractor
    from r2v.rollout.model_factory import engine, priced_policy
    from r2v.rollout.teacher_states import agreement_cell
    from r2v.router.case_support import CaseIndex
    from r2v.router.labels import write_rows

    episodes, splits = _recorded(cfg, work)
    weights = work.inputs["bc"].file("final")
    tools, told_of = told(_tools(work, "perturb")), told(_tools(work, "bc"))
    waves = engine(cfg.rollout, load_benchmark(cfg.env.benchmark, cfg.env.options))
    slm = priced_policy(cfg.policy, weights, cfg.cost, cfg.inference, cfg.rollout, waves, told_of)
    samples = cfg.inference.num_candidates if cfg.samples else 0
    cases = CaseIndex.load(work.inputs["case_support"].folder) if "case_support" in work.inputs else None
    extractor = FeatureExtractor(cfg.inference, slm=slm, num_samples=samples, cases=cases)
    inputs = {name: artifact.data_sha256 for name, artifact in work.inputs.items()}
    about = [c.identity(cfg.policy), c.identity(cfg.inference), c.identity(cfg.cost)]
    cell = agreement_cell(
        episodes,
        splits,
        GreedyActor(slm, "slm"),
        extractor,
        tools,
        max_steps=cfg.inference.max_steps,
        fits=_fits(cfg, work),
        what="ask the policy at its teacher's states",
        identity={"inputs": inputs, "settings": about, "samples": samples},
    )
    player = BlockPlayer.of(waves, work, cfg.rollout)
    rows = [row for rows in measured(cell, player) for row in rows]
    if {row.split for row in rows} != {"train", "calibration"}:
        raise EmptyResult(
            f"router features: {len(rows)} recorded steps of {len(episodes)} episodes are too few for a router and its "
            "calibration; import more tasks, or raise router.held_out_tasks or policy.max_seq_len"
        )
    write_rows(work.folder / "router_features.jsonl", rows)
    work.summary.update(
        labels=IMPUTED,
        n_steps=len(rows),
        n_tasks=len({row.task_id for row in rows}),
        n_disagreements=sum(bool(row.disagrees) for row in rows),
    )
    logger.info("  router features: %s", imputed_features_line(work.summary))


def _recorded(cfg: RouterFeaturesSettings, work: Work) -> tuple[dict[str, Episode], dict[str, str]]:
    """The episodes, by id, of the tasks that the policy was not cloned from, as many as the configuration asks for;
    and their tasks' splits. Raises InputError where it was cloned from all."""
    from r2v.data.store import StoredEpisodes
    from r2v.rollout.teacher_states import split_of

    cloned = set(json.loads(work.inputs["bc"].file(TASKS).read_text()))
    kept = StoredEpisodes(
        work.inputs["perturb"].file("trajectories.jsonl"), keep=lambda e: e.metadata.task_id not in cloned
    )
    counts = cfg.router.num_tasks, cfg.router.num_calibration_tasks
    splits = split_of((episode.metadata.task_id for episode in kept), *counts)
    if not splits:
        raise InputError(
            f"router.label=imputed: the policy was cloned from all {len(cloned)} recorded tasks, so its agreement with "
            "their teacher says nothing; clone it again under this label, which leaves router.held_out_tasks of them "
            "out (two tasks at least have to be recorded beside those)"
        )
    return {episode.episode_id: episode for episode in kept if episode.metadata.task_id in splits}, splits


def _tools(work: Work, name: str) -> Tools:
    """The tools that an input holds, or none."""
    source = work.inputs[name]
    return read_tools(source.file(TOOLS_FILE)) if TOOLS_FILE in source.files else ()


def _fits(cfg: RouterFeaturesSettings, work: Work) -> Any:
    """Whether a state can be put to the policy."""
    from r2v.policy.load import load_tokenizer
    from r2v.policy.prompt_encoder import Encoder
    from r2v.policy.training_tools import told

    tokenizer = load_tokenizer(cfg.policy, work.inputs["bc"].file("final"))
    encoder = Encoder.of(tokenizer, cfg.policy, cfg.inference.max_new_tokens, told(_tools(work, "bc")))

    def fits(view: StepView) -> bool:
        try:
            encoder(view.messages)
        except InputError:
            return False
        return True

    return fits


def impute_router(cfg: RouterSettings, rows: Sequence[FeatureRow], work: Work) -> None:
    """Fit a router on imputed labels, and place its threshold on the recorded calibration steps."""
    from r2v.router.case_support import CASE_SCORE
    from r2v.router.labels import labelled
    from r2v.router.models import CASE_SUPPORT
    from r2v.router.training import fit, report

    if "verifier" in cfg.router.features:
        logger.info("  router.features: an imputed router has no verifier; that group is left out")
    own = labelled(rows, "imputed")
    model = fit(own, cfg.router, cfg.seed, cfg.max_examples)
    model.save(work.folder / "r2v.json")
    figures = {"labels": IMPUTED, **report(model, own)}
    write_json(work.folder / "router_report.json", figures)
    placed = _placed(model, own, cfg.router.budget)
    if all(name in row.features for row in own for name in CASE_SCORE):
        other = "boosting" if cfg.router.model == CASE_SUPPORT else CASE_SUPPORT
        beside = fit(own, replace(cfg.router, model=other), cfg.seed, cfg.max_examples)
        work.summary["beside"] = {"model": other, **_placed(beside, own, cfg.router.budget)}
    tasks = len({row.task_id for row in own if row.split == "calibration"})
    threshold = {"tau": placed.pop("tau"), "budget": cfg.router.budget, "n_tasks": tasks, IMPUTED: placed}
    write_json(work.folder / "threshold.json", threshold)
    work.summary.update(labels=IMPUTED, tau=threshold["tau"], imputed=placed, report=figures)
    logger.info("  router: %s", imputed_router_line(work.summary))
    logger.warning(
        "  an imputed router: it tells where the policy acts otherwise than its teacher was recorded to, not where the "
        "LLM gains; nothing of it was executed, and it enters no table"
    )


def _placed(model: RouterModel, rows: Sequence[FeatureRow], budget: float) -> dict[str, float | None]:
    held = [(model.predict(row.features), not row.disagrees) for row in rows if row.split == "calibration"]
    return placed_on_records(held, budget)


def placed_on_records(steps: Sequence[tuple[float, bool]], budget: float) -> dict[str, float | None]:
    """The smallest threshold at which at most `budget` of these steps, each (score, whether the policy agrees with its
    teacher), would go to the LLM; that share; and the share of agreement among all steps and among those kept."""
    scores = sorted({score for score, _ in steps if 0 < score < 1} | {1.0})
    tau = next(tau for tau in scores if sum(score >= tau for score, _ in steps) <= budget * len(steps) or tau == 1.0)
    kept = [agrees for score, agrees in steps if score < tau]
    return {
        "tau": tau,
        "llm_call_rate": round(1 - len(kept) / len(steps), 6),
        "agreement": round(fmean(agrees for _, agrees in steps), 6),
        "agreement_of_kept_steps": round(fmean(kept), 6) if kept else None,
    }
