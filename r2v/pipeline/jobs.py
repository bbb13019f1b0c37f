"""Table of stages, the pipeline's only record of each. Behaviour, settings and version are in the stage's own module.

    COMMANDS    `r2v NAME --flags`, or `sbatch scripts/slurm/SCRIPT BENCHMARK ...`; one may make several jobs
    JOBS        number, stage, inputs and path of each artifact

The command line, the sbatch scripts' positional arguments, the Slurm chain, the paths of results and the tables in
README and docs are derived from these rows (`r2v.pipeline.rows`) or tested against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from r2v.errors import UsageError, nearest
from r2v.pipeline.rows import CONDITION, Command, FileInput, Flag, Instead, Job

if TYPE_CHECKING:
    from r2v.config import Config

COLLECT = Command(
    name="collect",
    help="the teacher plays training tasks into a versioned run",
    script="01_collect.sh",
    helped=True,
    positionals=("--num-episodes", "--seeds", CONDITION),
    flags=(
        Flag(
            name="--num-episodes",
            key="data.num_episodes",
            metavar="N",
            help="training tasks to play under each seed (default: all of the benchmark's)",
        ),
        Flag(name="--seeds", key="data.seeds", metavar="SEED", many=True, help="seeds of the worlds (default: 1 2)"),
        Flag(
            name="--run-id",
            key="run.id",
            metavar="RUN_ID",
            help="continue this run (default: an unfinished run of the same configuration, else a new one)",
        ),
        Flag(
            name="--run-tags",
            key="run.tags",
            metavar="TAG",
            many=True,
            help="words to find the run by in the registry (default: none)",
        ),
        Flag(name="--notes", key="run.notes", metavar="TEXT", help="a remark for the run's manifest (default: none)"),
        Flag(name="--output", key="run.base", metavar="DIR", help="where the run gets its folder (default: data/runs)"),
    ),
    instead=(
        Instead(
            name="--dry-run",
            call="r2v.pipeline.plan.dry_run:describe_collection",
            help="print the requests, tokens and US dollars of the collection, and ask no model",
        ),
        Instead(
            name="--cancel",
            call="r2v.stages.collect:cancel",
            help="cancel the provider batches of --run-id and keep their replies",
        ),
    ),
)
PERTURB = Command(
    name="perturb",
    help="turn collected runs into noisy training trajectories",
    script="02_perturb.sh",
    helped=True,
    positionals=("--seeds", CONDITION),
    flags=(
        Flag(
            name="--seeds",
            key="data.perturbation_seeds.train",
            metavar="SEED",
            many=True,
            help="seeds of the perturbations; each gives one perturbed twin an episode (default: 101)",
        ),
        Flag(
            name="--runs",
            key="data.runs",
            metavar="RUN_ID",
            many=True,
            help="runs to perturb (default: the latest done run of the benchmark)",
        ),
    ),
)
TRAIN_POLICY = Command(
    name="train_policy",
    help="distil the small policy: behaviour cloning (bc), then DPO (preference)",
    script="03_train_policy.sh",
    positionals=(CONDITION, "--stage"),
    file_inputs=(
        FileInput(
            name="--trajectories",
            job="perturb",
            help="train on this trajectories.jsonl (default: that of perturb)",
        ),
    ),
    phased=True,
    output=True,
    resumable=True,
)
TRAIN_VERIFIER = Command(
    name="train_verifier",
    help="train the step-level verifier",
    script="04_train_verifier.sh",
)
GENERATE_CANDIDATES = Command(
    name="generate_candidates",
    help="sample, execute and score K actions per state",
    script="05_generate_candidates.sh",
    helped=True,
    positionals=("--K", CONDITION),
    flags=(Flag(name="--K", key="candidates.num_samples", metavar="K", help="actions sampled per state (default: 5)"),),
)
FIT_CASE_SUPPORT = Command(
    name="fit_case_support",
    help="index the teacher's steps, for routers that read the nearest ones",
    script="05a_fit_case_support.sh",
)
GENERATE_ROUTER_FEATURES = Command(
    name="generate_router_features",
    help="play the small policy and execute the gain of an LLM step at each state",
    script="06_generate_router_features.sh",
    helped=True,
)
TRAIN_ROUTER = Command(
    name="train_router",
    help="fit the router on executed gains and place its threshold by playing",
    script="07_train_router.sh",
    helped=True,
)
EVALUATE = Command(
    name="evaluate",
    help="play every method on the evaluation tasks and write the tables",
    script="08_evaluate.sh",
    helped=True,
    positionals=(CONDITION, "--seeds", "--methods"),
    flags=(
        Flag(name="--seeds", key="evaluation.seeds", metavar="SEED", many=True, help="world seeds (default: 1 2)"),
        Flag(
            name="--methods",
            key="evaluation.methods",
            metavar="METHOD",
            many=True,
            help="methods to play (default: every method of the main table)",
        ),
        Flag(
            name="--conditions",
            key="evaluation.conditions",
            metavar="CONDITION",
            many=True,
            help="conditions to play under (default: clean noisy shift)",
        ),
        Flag(name="--num-tasks", key="evaluation.num_tasks", metavar="N", help="tasks per condition (default: all)"),
    ),
)
ABLATIONS = Command(
    name="ablations",
    help="take parts away, one at a time, and play both",
    script="09_ablations.sh",
    helped=True,
    positionals=("--seeds", CONDITION),
    flags=(
        Flag(name="--seeds", key="ablations.seeds", metavar="SEED", many=True, help="world seeds (default: 1 2)"),
        Flag(name="--names", key="ablations.names", metavar="NAME", many=True, help="rows or all (default: the usual)"),
    ),
)
TRAIN_HIERARCHICAL = Command(
    name="train_hierarchical",
    help="hierarchical RL: an actor and the guidance that hints to it",
    script="10_train_hierarchical.sh",
    config="configs/hierarchical.yaml",
    output=True,
)


def trains_policy(config: Config) -> bool:
    """True if the small model is trained here, not behind an API."""
    return not config.policy.is_api


JOBS = (
    Job(
        name="collect",
        number="1",
        command=COLLECT,
        stage="r2v.stages.collect:STAGE",
        parts="r2v.pipeline.plan.stage_parts:collect",
        place=None,
        outputs=("runs.jsonl",),
        enabled=lambda config: config.reads_records and not config.data.runs,
        imputed=(),
        task_counts=(("data.num_episodes", "train"),),
    ),
    Job(
        name="perturb",
        number="2",
        command=PERTURB,
        stage="r2v.stages.perturb:STAGE",
        parts="r2v.pipeline.plan.stage_parts:perturb",
        place="data/{prefix}trajectories/{pipeline}",
        outputs=("trajectories.jsonl", "perturb_report.json"),
        needs=("collect",),
        enabled=lambda config: config.reads_records,
        imputed=("collect",),
    ),
    Job(
        name="bc",
        number="3a",
        command=TRAIN_POLICY,
        spreads=True,
        stage="r2v.stages.train_policy:BC",
        parts="r2v.pipeline.plan.stage_parts:bc",
        memory="r2v.policy.rehearsal:bc",
        place="outputs/{prefix}policy/{pipeline}/bc",
        outputs=("final", "bc_report.json"),
        needs=("perturb",),
        imputed=("perturb",),
        enabled=trains_policy,
        optional=True,
    ),
    Job(
        name="verifier",
        number="3b",
        command=TRAIN_VERIFIER,
        usual_share=0.5,
        spreads=True,
        stage="r2v.stages.train_verifier:STAGE",
        parts="r2v.pipeline.plan.stage_parts:verifier",
        memory="r2v.verifier.train:rehearse",
        place="outputs/{prefix}verifier/{pipeline}",
        outputs=("verifier_data.jsonl", "verifier_report.json"),
        needs=("collect",),
        task_counts=(("verifier.num_tasks", "train"),),
        enabled=trains_policy,
        optional=True,
    ),
    Job(
        name="candidates",
        number="4",
        command=GENERATE_CANDIDATES,
        usual_share=0.5,
        stage="r2v.stages.generate_candidates:STAGE",
        parts="r2v.pipeline.plan.stage_parts:candidates",
        memory="r2v.llm.local.rehearsal:memory",
        place="data/{prefix}candidates/{pipeline}",
        outputs=("candidates.jsonl", "preference_pairs.jsonl", "pairs_report.json", "ranking_report.json"),
        needs=("bc", "verifier"),
        enabled=trains_policy,
        optional=True,
        task_counts=(("candidates.num_tasks", "train"),),
    ),
    Job(
        name="preference",
        number="5",
        command=TRAIN_POLICY,
        spreads=True,
        stage="r2v.stages.train_policy:PREFERENCE",
        parts="r2v.pipeline.plan.stage_parts:preference",
        memory="r2v.policy.rehearsal:preference",
        place="outputs/{prefix}policy/{pipeline}/preference",
        outputs=("final",),
        needs=("candidates",),
        also_reads=("bc", "perturb"),  # the latter for the sake of fingerprints: cloned actions were rehearsed once
        enabled=trains_policy,
        optional=True,
    ),
    Job(
        name="case_support",
        number="5a",
        command=FIT_CASE_SUPPORT,
        stage="r2v.stages.fit_case_support:STAGE",
        place="outputs/{prefix}case_support/{pipeline}",
        outputs=("cases.npz", "cases.json"),
        needs=("bc",),
        also_reads=("perturb",),
        enabled=lambda config: config.router.reads_cases,
        optional=True,
        imputed=("bc", "perturb"),
    ),
    Job(
        name="router_features",
        number="6",
        command=GENERATE_ROUTER_FEATURES,
        usual_share=0.2,
        stage="r2v.stages.generate_router_features:STAGE",
        parts="r2v.pipeline.plan.stage_parts:router_features",
        memory="r2v.llm.local.rehearsal:memory",
        place="data/{prefix}router_features/{pipeline}",
        outputs=("router_features.jsonl",),
        needs=("preference", "case_support"),
        also_reads=("verifier",),
        task_counts=(("router.num_tasks", "train"), ("router.num_calibration_tasks", "calibration")),
        imputed=("bc", "perturb", "case_support"),
        imputed_parts="r2v.pipeline.plan.stage_parts:recorded_states",
    ),
    Job(
        name="router",
        number="7",
        command=TRAIN_ROUTER,
        usual_share=0.05,
        stage="r2v.stages.train_router:STAGE",
        parts="r2v.pipeline.plan.stage_parts:router",
        memory="r2v.llm.local.rehearsal:memory",
        place="outputs/{prefix}router/{pipeline}",
        outputs=("r2v.json", "threshold.json", "router_report.json"),
        needs=("router_features",),
        also_reads=("preference", "verifier", "case_support"),
        task_counts=(("router.num_calibration_tasks", "calibration"),),
        imputed=("router_features",),
    ),
    Job(
        name="evaluate",
        number="8",
        command=EVALUATE,
        usual_share=0.05,
        stage="r2v.stages.evaluate:STAGE",
        parts="r2v.pipeline.plan.evaluation_parts:evaluate",
        memory="r2v.llm.local.rehearsal:memory",
        place="results/{prefix}{pipeline}",
        outputs=("episodes", "setup.json", "structured_results"),
        needs=("router",),
        also_reads=("bc", "preference", "verifier", "router_features", "case_support"),
        uses_inputs=lambda config: config.evaluation.of_trained,
        task_counts=(("evaluation.num_tasks", "evaluation"),),
    ),
    Job(
        name="ablations",
        number="9",
        command=ABLATIONS,
        usual_share=0.1,
        stage="r2v.experiments.ablations:STAGE",
        remakes="evaluate",
        memory="r2v.llm.local.rehearsal:memory",
        place="results/ablations/{benchmark}",
        outputs=("structured_results", "changes.json", "evaluations"),
        needs=("router",),
        enabled=trains_policy,
    ),
    Job(
        name="hierarchical",
        number="10",
        command=TRAIN_HIERARCHICAL,
        spreads=True,
        stage="r2v.stages.train_hierarchical:STAGE",
        parts="r2v.pipeline.plan.stage_parts:hierarchical",
        memory="r2v.hrl.training.rehearsal:memory",
        place="outputs/{prefix}hierarchical/{pipeline}",
        outputs=("final", "hierarchical_report.json", "metrics.jsonl"),
        needs=("bc",),
        enabled=lambda config: config.hierarchical.enabled,
        uses_inputs=lambda config: config.hierarchical.start == "bc",
        imputed=("bc",),
    ),
)
COMMANDS = tuple(dict.fromkeys(row.command for row in JOBS))  # in the order of the table


def job(name: str) -> Job:
    """Return the row of this name or number. Raise UsageError with the nearest name."""
    for row in JOBS:
        if name in (row.name, row.number):
            return row
    raise UsageError(f"no job {name}; {nearest(name, [row.name for row in JOBS])}")


def command(name: str) -> Command:
    """Return the command of this name. Raise UsageError with the nearest one."""
    for row in COMMANDS:
        if row.name == name:
            return row
    raise UsageError(f"no stage {name}; {nearest(name, [row.name for row in COMMANDS])}")
