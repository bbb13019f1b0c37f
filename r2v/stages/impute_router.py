"""Imputed routers: stages 6 and 7 on records that cannot be executed, such as imported logs.

    r2v generate_router_features --overrides env.benchmark=logs router.label=imputed
    r2v train_router --overrides env.benchmark=logs router.label=imputed

The small policy acts at the teacher's states: a cloned one in tasks held out of cloning, in R2V's rendering; a model
behind an API in all of them, by the recorded messages and tools. A label is true where it acts otherwise than the
teacher, and a router is fitted on these labels. At most `router.budget` of the recorded calibration steps have a score
of at least its threshold: a share of records, not of played episodes. Files, summaries and bundles name all of it
imputed, and no evaluation plays it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.config.evaluation import IMPUTED
from r2v.data.tools import TOOLS_FILE, Tools, read_tools
from r2v.errors import EmptyResult, InputError
from r2v.log import logger
from r2v.router.escalation import recorded_score
from r2v.stages.router_settings import RouterFeaturesSettings, RouterSettings
from r2v.stages.summary_lines import imputed_features_line, imputed_router_line
from r2v.stages.train_policy import TASKS
from r2v.storage.artifact import Work
from r2v.storage.files import write_json, write_text
from r2v.wire.message import ToolResult, UnknownPart

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.evaluation.on_records import OnRecords
    from r2v.rollout.actors import StepView
    from r2v.router.labels import FeatureRow
    from r2v.router.models import RouterModel

PAGE = "records.html"
"""Page with the cost and agreement of routing on the records."""


def impute_features(cfg: RouterFeaturesSettings, work: Work) -> None:
    """Ask the small policy at every recorded state of the tasks that it was not cloned from; write the rows. Raise
    EmptyResult where train or calibration steps are missing."""
    from r2v.envs.base import load_benchmark
    from r2v.policy.training_tools import tool_specs
    from r2v.rollout.actors import GreedyActor
    from r2v.rollout.gates import FeatureExtractor
    from r2v.rollout.model_factory import Payer, engine, priced_native_policy, priced_policy
    from r2v.rollout.stage_rollouts.teacher_states import agreement_cell
    from r2v.rollout.work_queue import BlockPlayer, measured
    from r2v.router.case_support import CaseIndex
    from r2v.router.labels import write_rows

    episodes, splits = _recorded(cfg, work)
    tools, native = tool_specs(_tools(work, "perturb")), cfg.policy.is_api
    benchmark = load_benchmark(cfg.env.benchmark, cfg.env.options)
    if native:
        waves = engine(cfg.rollout, benchmark, cfg.policy.as_endpoint(cfg.teacher))
        slm = priced_native_policy(cfg.policy, cfg.teacher, cfg.cost, waves, Payer.of(work))
    else:
        waves, told_of = engine(cfg.rollout, benchmark), tool_specs(_tools(work, "bc"))
        weights = work.inputs["bc"].file("final")
        slm = priced_policy(cfg.policy, weights, cfg.cost, cfg.inference, cfg.rollout, waves, told_of)
    samples = cfg.router.num_samples(cfg.inference)
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
        native=native,
        fits=_readable if native else _fits(cfg, work),
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
    logger.info("  router features imputed: figures=%s", imputed_features_line(work.summary))


def _recorded(cfg: RouterFeaturesSettings, work: Work) -> tuple[dict[str, Episode], dict[str, str]]:
    """Return the episodes by id of tasks that the policy was not cloned from, as many as configured, and these tasks'
    splits. Raise InputError if it was cloned from all."""
    from r2v.data.store import StoredEpisodes
    from r2v.rollout.stage_rollouts.teacher_states import split_of

    clone = work.inputs.get("bc")
    cloned = set() if clone is None else set(json.loads(clone.file(TASKS).read_text()))
    episodes = StoredEpisodes(
        work.inputs["perturb"].file("trajectories.jsonl"),
        keep=lambda e: e.metadata.task_id not in cloned and (clone is not None or e.construction == "native"),
    )
    counts = cfg.router.num_tasks, cfg.router.num_calibration_tasks
    splits = split_of((episode.metadata.task_id for episode in episodes), *counts)
    if not splits:
        raise InputError(
            f"router.label=imputed: the policy was cloned from all {len(cloned)} recorded tasks, so its agreement with "
            "their teacher says nothing; clone it again under this label, which leaves router.held_out_tasks of them "
            "out (two tasks at least have to be recorded beside those)"
        )
    return {episode.episode_id: episode for episode in episodes if episode.metadata.task_id in splits}, splits


def _tools(work: Work, name: str) -> Tools:
    """Return the tools of an input, or none."""
    source = work.inputs[name]
    return read_tools(source.file(TOOLS_FILE)) if TOOLS_FILE in source.files else ()


def _readable(view: StepView) -> bool:
    """True if a recorded state holds only text and tool calls, all of which a small model can read."""
    pieces = (
        piece
        for message in view.messages
        for part in message.parts
        for piece in (part.content if isinstance(part, ToolResult) and not isinstance(part.content, str) else (part,))
    )
    return not any(isinstance(piece, UnknownPart) for piece in pieces)


def _fits(cfg: RouterFeaturesSettings, work: Work) -> Any:
    """Return the predicate that is true if a state fits into the policy's context."""
    from r2v.policy.load import load_tokenizer
    from r2v.policy.prompt_encoder import Encoder
    from r2v.policy.training_tools import tool_specs

    tokenizer = load_tokenizer(cfg.policy, work.inputs["bc"].file("final"))
    encoder = Encoder.of(tokenizer, cfg.policy, cfg.inference.max_new_tokens, tool_specs(_tools(work, "bc")))

    def fits(view: StepView) -> bool:
        try:
            encoder(view.messages)
        except InputError:
            return False
        return True

    return fits


def impute_router(cfg: RouterSettings, rows: Sequence[FeatureRow], work: Work) -> None:
    """Fit a router on imputed labels, and place its threshold on the recorded calibration steps."""
    from r2v.evaluation.on_records import verdict_of
    from r2v.router.case_support import CASE_SCORE
    from r2v.router.labels import labelled
    from r2v.router.models import CASE_SUPPORT
    from r2v.router.training import fit, report

    if "verifier" in cfg.router.features:
        logger.info("  router.features: an imputed router has no verifier; that group is left out")
    own = labelled(rows, "imputed")
    model = fit(own, cfg.router, cfg.seed)
    model.save(work.folder / "r2v.json")
    held = [row for row in own if row.split == "calibration"]
    fitted, on_records = report(model, own), _on_records(cfg, model, held)
    records = {"records": [asdict(point) for point in on_records]}
    write_json(work.folder / "router_report.json", {"labels": IMPUTED, **fitted, **records})
    verdict = verdict_of(on_records, cfg.router.budget)
    write_text(work.folder / PAGE, _page(cfg, on_records, verdict))
    placed = _placed(model, own, cfg.router.budget)
    if all(name in row.features for row in own for name in CASE_SCORE):
        other = "boosting" if cfg.router.model == CASE_SUPPORT else CASE_SUPPORT
        beside = fit(own, replace(cfg.router, model=other), cfg.seed)
        work.summary["beside"] = {"model": other, **_placed(beside, own, cfg.router.budget)}
    tasks = len({row.task_id for row in held})
    threshold: dict[str, Any] = {
        "tau": placed.pop("tau"),
        "budget": cfg.router.budget,
        "n_tasks": tasks,
        IMPUTED: placed,
    }
    points = [(budget, _placed(model, own, budget)) for budget in _budgets(cfg)]
    threshold["evaluated"] = [
        {"budget": budget, **{name: point[name] for name in ("tau", "llm_call_rate")}} for budget, point in points
    ]
    write_json(work.folder / "threshold.json", threshold)
    summary = {"report": {"labels": IMPUTED, **fitted}, "verdict": verdict}
    work.summary.update(labels=IMPUTED, tau=threshold["tau"], imputed=placed, **summary)
    logger.info("  router imputed: figures=%s", imputed_router_line(work.summary))
    logger.info("  router on the records: verdict=%s", verdict)
    logger.warning(
        "  an imputed router: it tells where the policy acts otherwise than its teacher was recorded to, not where the "
        "LLM gains; nothing of it was executed, and it enters no table"
    )


def _budgets(cfg: RouterSettings) -> list[float]:
    """Return the budgets of the page, each of which a server offers."""
    from r2v.evaluation.on_records import BUDGETS

    return sorted({*BUDGETS, cfg.router.budget})


def _on_records(cfg: RouterSettings, model: RouterModel, held: Sequence[FeatureRow]) -> list[OnRecords]:
    """Return the cost and agreement of routing on the recorded calibration tasks, by budget."""
    from r2v.evaluation.on_records import OnRecords, routed_steps

    points = []
    for budget in _budgets(cfg):
        routed = routed_steps(held, partial(_score, model), partial(_tau, model, budget))
        points += [OnRecords.of(routed, budget)] if routed else []
    return points


def _page(cfg: RouterSettings, points: Sequence[OnRecords], verdict: str) -> str:
    from r2v.evaluation.on_records import HEADS
    from r2v.report.elements import pilot_page

    notes = [
        "Nothing was executed: both models were compared at the states of the recorded sessions. Another action than "
        "the LLM's may be as good; a session in which every kept step is the LLM's own would have gone as it did.",
        "Dollars are those of the records, the small model's turns at list prices. An LLM's step after kept ones is "
        "counted with the cache that it had. Thresholds of one half of the tasks are placed on the other half.",
        "Budget is router.budget, the share of steps that may go to the LLM; r2v serve offers each as a model, "
        "r2v:budget=SHARE. Intervals of 95 % are over tasks.",
    ]
    title = f"{cfg.policy.model_name} beside the recorded LLM"
    return pilot_page(title, verdict, [HEADS, *(point.row() for point in points)], notes)


def _score(model: RouterModel, row: FeatureRow) -> float:
    return recorded_score(model.predict(row.features))


def _tau(model: RouterModel, budget: float, rows: Sequence[FeatureRow]) -> float:
    return float(_placed(model, rows, budget)["tau"] or 0.0)


def _placed(model: RouterModel, rows: Sequence[FeatureRow], budget: float) -> dict[str, float | None]:
    held = [(_score(model, row), not row.disagrees) for row in rows if row.split == "calibration"]
    return placed_on_records(held, budget)


def placed_on_records(steps: Sequence[tuple[float, bool]], budget: float) -> dict[str, float | None]:
    """Return the smallest threshold that sends at most `budget` of these steps to the LLM, the share sent, and the
    share of agreement of all steps and of those kept. steps: (score, true if the policy agrees with its teacher)."""
    scores = sorted({score for score, _ in steps if score > 0} | {1.0})
    tau = next(tau for tau in scores if sum(score >= tau for score, _ in steps) <= budget * len(steps) or tau == 1.0)
    agreements = [agrees for score, agrees in steps if score < tau]
    return {
        "tau": tau,
        "llm_call_rate": round(1 - len(agreements) / len(steps), 6),
        "agreement": round(fmean(agrees for _, agrees in steps), 6),
        "agreement_of_kept_steps": round(fmean(agreements), 6) if agreements else None,
    }
