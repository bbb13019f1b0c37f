"""File kinds: one table of all files that r2v writes below a project, from which the trust suites are generated.

    kind_of("data/registry.json").damage        # "rebuilt"
    files_of(folder)                            # every file of a project with its kind

A row gives a kind's paths, its format, the functions that write it, the commands that read it, and the treatment of a
damaged file. `test_kinds.py` compares the table with the files of a run and with the source: a file or a write call
without a row fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Form = Literal["json", "jsonl", "csv", "yaml", "text", "tensors", "pickle", "link"]
"""tensors: safetensors; pickle: torch.save, read with weights_only."""

Damage = Literal["remade", "refused", "rebuilt", "quarantined", "ignored", "paid"]
"""Treatment of a damaged file.

remade: `r2v run` names it and makes its artifact again, to the same content; a single stage that reads it refuses.
refused: one line names it with the remedy; nothing is made of it.
rebuilt: an index or a cache, written again from its sources.
quarantined: set aside with a line; the undamaged rest stays in use.
ignored: read by people alone, or not at all once its stage has finished.
paid: a journal of paid requests; its whole lines count, none is ever removed.
"""

STORE = "outputs/.artifacts"
STAGES = ("run", "verify-results", "stage")


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """One row. `paths` are patterns below the project: `*` within a name, `**` over folders, `{job}` the folder of an
    artifact of that job, `{any}` of any job. `writers` are module:function below r2v."""

    name: str
    paths: tuple[str, ...]
    form: Form
    writers: tuple[str, ...]
    damage: Damage
    readers: tuple[str, ...] = ()
    """Commands that read it; `job NAME` for the stage of a job."""
    schema: str | None = None
    """Dataclass of its records, module:name below r2v."""
    content: bool = False
    """True if it is hashed into `artifact.json`."""

    @property
    def in_micro_run(self) -> bool:
        """True if the pipeline's smallest run leaves files of this kind."""
        return self.name not in ELSEWHERE

    def matches(self, path: str) -> bool:
        """True if a path below a project is one of this kind."""
        return any(_pattern(one).fullmatch(path) for one in self.paths)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*|\*|\{\w+\})", text)
    return re.compile("".join(_piece(part) for part in parts))


def _piece(part: str) -> str:
    if part == "**":
        return r".+"
    if part == "*":
        return r"[^/]+"
    if part.startswith("{") and part.endswith("}"):
        job = r"[a-z_]+" if part == "{any}" else re.escape(part[1:-1])
        return rf"{STORE}/{job}-[0-9a-f]{{16}}"
    return re.escape(part)


def kind_of(path: str) -> FileKind:
    """Return the row of a path below a project. Raises LookupError if none, or more than one, matches."""
    rows = [kind for kind in KINDS if kind.matches(path)]
    if len(rows) != 1:
        raise LookupError(f"{path}: {[row.name for row in rows] or 'no row'} in tests/trust/kinds.py")
    return rows[0]


def unlisted(project: Path) -> list[str]:
    """Return the faults of the table for a project: files of no kind, or of more than one."""
    wrong = []
    for room in ("data", "outputs", "results", "logs"):
        for path in sorted((project / room).rglob("*")):
            try:
                if path.is_symlink() or path.is_file():
                    kind_of(path.relative_to(project).as_posix())
            except LookupError as error:
                wrong.append(str(error))
    return wrong


def files_of(project: Path) -> Iterator[tuple[Path, FileKind]]:
    """Yield every file and link below data/, outputs/, results/ and logs/ with its kind; links are not followed."""
    for room in ("data", "outputs", "results", "logs"):
        for path in sorted((project / room).rglob("*")):
            if path.is_symlink() or path.is_file():
                yield path, kind_of(path.relative_to(project).as_posix())


def kind(name: str) -> FileKind:
    """Return the row of this name."""
    return next(row for row in KINDS if row.name == name)


_EVALUATED = ("episodes", "gains", "branches", "calibration", "structured_results")
"""Folders of an evaluation."""

RUN_FILES = (
    FileKind(
        name="run manifest",
        paths=("data/runs/*/run_manifest.json",),
        form="json",
        writers=("data.manifest:write_manifest",),
        schema="data.manifest:RunManifest",
        damage="quarantined",
        readers=("run", "collect", "job perturb", "job verifier", "registry"),
    ),
    FileKind(
        name="run trajectories",
        paths=("data/runs/*/trajectories.jsonl",),
        form="jsonl",
        writers=(
            "data.store:write_episodes",
            "data.store:sort_episodes",
            "data.store:TrajectoryStore.append",
            "data.store:mend_tail",
        ),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "job perturb", "job verifier"),
    ),
    FileKind(
        name="lines set aside",
        paths=("data/runs/*/trajectories.jsonl.quarantine", "data/runs/*/trajectories.jsonl.*.quarantine"),
        form="jsonl",
        writers=("data.store:_quarantine",),
        damage="ignored",
    ),
    FileKind(
        name="collection log",
        paths=("data/runs/*/collection_log.jsonl",),
        form="jsonl",
        writers=("stages.collect:_play_missing.write",),
        damage="ignored",
    ),
    FileKind(
        name="run index",
        paths=("data/registry.json",),
        form="json",
        writers=("data.registry:RunIndex._write",),
        damage="rebuilt",
        readers=("collect",),
    ),
    FileKind(
        name="run index journal",
        paths=("data/registry.journal.jsonl",),
        form="jsonl",
        writers=("data.registry:RunIndex._append",),
        damage="rebuilt",
        readers=("collect",),
    ),
    FileKind(
        name="run elsewhere",
        paths=("data/runs/*",),
        form="link",
        writers=(),
        damage="quarantined",
        readers=("collect", "registry"),
    ),
)

ARTIFACT_FILES = (
    FileKind(
        name="published link",
        paths=(
            "data/**/trajectories",
            "data/**/candidates",
            "data/**/router_features",
            "data/trajectories/*",
            "data/candidates/*",
            "data/router_features/*",
            "outputs/**/bc",
            "outputs/**/preference",
            "outputs/*/verifier",
            "outputs/*/router",
            "outputs/*/hierarchical",
            "outputs/verifier/*",
            "outputs/router/*",
            "outputs/hierarchical/*",
            "results/*",
            "results/ablations/*",
        ),
        form="link",
        writers=(),
        damage="rebuilt",
        readers=("run", "verify-results", "stage"),
    ),
    FileKind(
        name="artifact manifest",
        paths=("{any}/artifact.json",),
        form="json",
        writers=("storage.artifact_manifest:write_artifact_manifest",),
        schema="storage.artifact_manifest:ArtifactManifest",
        damage="remade",
        readers=STAGES,
    ),
    FileKind(
        name="places elsewhere",
        paths=("{any}/.places",),
        form="text",
        writers=("storage.artifact:_remember",),
        damage="ignored",
        readers=("gc",),
    ),
    FileKind(
        name="attempt",
        paths=("{any}/attempt.meta.json",),
        form="json",
        writers=("storage.artifact:build",),
        damage="refused",
        readers=("train_policy --resume",),
    ),
    FileKind(
        name="resolved configuration",
        paths=("{any}/config.yaml",),
        form="yaml",
        writers=("storage.artifact:build",),
        damage="remade",
        readers=STAGES,
    ),
    FileKind(
        name="collected runs",
        paths=("{collect}/runs.jsonl",),
        form="jsonl",
        writers=("stages.collect:run",),
        damage="remade",
        readers=("run", "job perturb", "job verifier"),
        content=True,
    ),
    FileKind(
        name="training trajectories",
        paths=("{perturb}/trajectories.jsonl",),
        form="jsonl",
        writers=("stages.perturb:write_sorted", "data.store:write_episodes"),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "job bc"),
        content=True,
    ),
    FileKind(
        name="training tools",
        paths=("{perturb}/tools.json", "{bc}/tools.json"),
        form="json",
        writers=("data.tools:write_tools",),
        damage="remade",
        readers=("run", "job bc", "job preference"),
        content=True,
    ),
    FileKind(
        name="stage report",
        paths=(
            "{perturb}/perturb_report.json",
            "{bc}/bc_report.json",
            "{preference}/dpo_report.json",
            "{preference}/acceptance.json",
            "{verifier}/verifier_report.json",
            "{verifier}/judge_report.json",
            "{candidates}/pairs_report.json",
            "{candidates}/ranking_report.json",
            "{router}/router_report.json",
            "{hierarchical}/hierarchical_report.json",
        ),
        form="json",
        writers=(
            "stages.perturb:run",
            "policy.training.bc:train_bc",
            "policy.training.preference:train_preference",
            "stages.accept_policy:accept_or_hand_on",
            "stages.train_verifier:run",
            "stages.train_verifier:_opinions",
            "stages.generate_candidates:run",
            "stages.train_router:run",
            "stages.train_hierarchical:_train",
        ),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="cloned tasks",
        paths=("{bc}/tasks.json",),
        form="json",
        writers=("stages.train_policy:_clone",),
        damage="remade",
        readers=("run", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="policy settings",
        paths=tuple(
            f"{{{job}}}/{folder}/{name}"
            for job, folder in (
                ("bc", "final"),
                ("preference", "final"),
                ("hierarchical", "final"),
                ("hierarchical", "best"),
            )
            for name in (
                "config.json",
                "generation_config.json",
                "adapter_config.json",
                "base.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "chat_template.jinja",
                "special_tokens_map.json",
            )
        )
        + (
            "{hierarchical}/final/*/adapter_config.json",
            "{hierarchical}/best/*/adapter_config.json",
            "{verifier}/final/adapter_config.json",
            "{verifier}/folds/*/adapter_config.json",
            "{verifier}/final/base.json",
            "{verifier}/folds/*/base.json",
        ),
        form="json",
        writers=(
            "policy.export:export",
            "policy.export:export_adapters",
            "storage.model_identity:record_base",
        ),
        damage="remade",
        readers=("run", "job candidates", "job preference", "job router_features", "job router", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="policy weights",
        paths=(
            "{bc}/final/*.safetensors",
            "{preference}/final/*.safetensors",
            "{hierarchical}/final/*.safetensors",
            "{hierarchical}/final/*/*.safetensors",
            "{hierarchical}/best/*.safetensors",
            "{hierarchical}/best/*/*.safetensors",
        ),
        form="tensors",
        writers=("policy.export:export", "policy.export:_save"),
        damage="remade",
        readers=("run", "job candidates", "job preference", "job router_features", "job router", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="verifier settings",
        paths=("{verifier}/final/verifier.json", "{verifier}/folds/*/verifier.json"),
        form="json",
        writers=("verifier.model:_write_settings",),
        damage="remade",
        readers=("run", "job candidates", "job router_features", "job router", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="verifier weights",
        paths=("{verifier}/final/*.safetensors", "{verifier}/folds/*/*.safetensors"),
        form="tensors",
        writers=("verifier.model:save", "policy.export:export_adapters"),
        damage="remade",
        readers=("run", "job candidates", "job router_features", "job router", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="verifier examples",
        paths=("{verifier}/verifier_data.jsonl",),
        form="jsonl",
        writers=("verifier.labels:write_examples",),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="judge replies",
        paths=("{verifier}/*.meta.jsonl", "{verifier}/judge*.jsonl"),
        form="jsonl",
        writers=("verifier.judge:Judge._keep",),
        damage="ignored",
        readers=("job verifier",),
    ),
    FileKind(
        name="candidates",
        paths=("{candidates}/candidates.jsonl",),
        form="jsonl",
        writers=("policy.candidates:write_states",),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="preference pairs",
        paths=("{candidates}/preference_pairs.jsonl",),
        form="jsonl",
        writers=("policy.pairs:write_pairs",),
        damage="remade",
        readers=("run", "job preference"),
        content=True,
    ),
    FileKind(
        name="router features",
        paths=("{router_features}/router_features.jsonl",),
        form="jsonl",
        writers=("router.labels:write_rows",),
        damage="remade",
        readers=("run", "job router", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="router model",
        paths=("{router}/r2v.json", "{router}/disagreement_router.json"),
        form="json",
        writers=("router.models:RouterModel.save",),
        damage="remade",
        readers=("run", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="threshold",
        paths=("{router}/threshold.json",),
        form="json",
        writers=("stages.train_router:run", "stages.impute_router:impute_router"),
        damage="remade",
        readers=("run", "job evaluate"),
        content=True,
    ),
    FileKind(
        name="roll-outs",
        paths=("{router_features}/rollouts.jsonl.zst",),
        form="jsonl",
        writers=("stages.generate_router_features:run",),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "job router"),
        content=True,
    ),
    FileKind(
        name="evaluation episodes",
        paths=("{evaluate}/episodes/*/*.jsonl.zst", "{evaluate}/episodes/*/frontier/*.jsonl.zst"),
        form="jsonl",
        writers=("data.store:write_episodes", "data.store:sort_episodes", "data.store:TrajectoryStore.append"),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "verify-results", "job ablations"),
        content=True,
    ),
    FileKind(
        name="calibration plays",
        paths=(
            "{router}/calibration/*.jsonl.zst",
            "{evaluate}/calibration/*.jsonl.zst",
            "{evaluate}/calibration/router/*.jsonl.zst",
        ),
        form="jsonl",
        writers=("evaluation.acting.calibration:ExecutedPlays.write", "stages.evaluate:copy_router_plays"),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "job evaluate", "verify-results"),
        content=True,
    ),
    FileKind(
        name="calibration states",
        paths=("{router}/calibration/states.json", "{evaluate}/calibration/router/states.json"),
        form="json",
        writers=("stages.train_router:run", "stages.evaluate:copy_router_plays"),
        schema="evaluation.calibration:RouterStates",
        damage="remade",
        readers=("run", "job evaluate", "verify-results"),
        content=True,
    ),
    FileKind(
        name="branches",
        paths=("{evaluate}/branches/*/*.jsonl.zst",),
        form="jsonl",
        writers=("data.store:write_episodes",),
        schema="data.episode:Episode",
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="executed gains",
        paths=("{evaluate}/gains/*.jsonl",),
        form="jsonl",
        writers=("router.labels:write_rows",),
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="evaluation thresholds",
        paths=("{evaluate}/calibration.json",),
        form="json",
        writers=("stages.evaluate:run",),
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="evaluation setup",
        paths=("{evaluate}/setup.json",),
        form="json",
        writers=("evaluation.setup:write_setup",),
        schema="evaluation.setup:Setup",
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="result table",
        paths=("{evaluate}/structured_results/*.csv", "{ablations}/structured_results/*.csv"),
        form="csv",
        writers=("evaluation.tables.files:write_results", "utils.results:ResultsManager._generate"),
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="result figures",
        paths=(
            "{evaluate}/structured_results/*.json",
            "{evaluate}/structured_results/*.md",
            "{evaluate}/structured_results/*.tex",
            "{ablations}/structured_results/*.json",
        ),
        form="json",
        writers=("evaluation.tables.files:write_results", "utils.results:ResultsManager._generate"),
        damage="remade",
        readers=("run", "verify-results"),
        content=True,
    ),
    FileKind(
        name="ablation changes",
        paths=("{ablations}/changes.json",),
        form="json",
        writers=("experiments.ablations:run",),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="evaluation of an ablation",
        paths=tuple(
            f"{{ablations}}/evaluations/*/{name}"
            for name in ("setup.json", "calibration.json", *(f"{folder}/**" for folder in _EVALUATED))
        ),
        form="text",
        writers=("experiments.ablations:_keep",),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="record of an ablation's evaluation",
        paths=tuple(
            f"{{ablations}}/evaluations/*/{name}" for name in ("artifact.json", "attempt.meta.json", "config.yaml")
        ),
        form="text",
        writers=("experiments.ablations:_keep",),
        damage="ignored",
    ),
    FileKind(
        name="metrics series",
        paths=("{any}/metrics.jsonl",),
        form="jsonl",
        writers=("hrl.training.metrics:MetricsFile.append", "hrl.training.metrics:MetricsFile.truncate"),
        damage="remade",
        readers=("run",),
        content=True,
    ),
    FileKind(
        name="task states",
        paths=("{hierarchical}/task_states.jsonl",),
        form="jsonl",
        writers=("hrl.tasks.task_states:write_states",),
        damage="remade",
        readers=("run", "job hierarchical"),
        content=True,
    ),
)

EXPERIMENT_FILES = (
    FileKind(
        name="experiment record",
        paths=("outputs/experiments/*/experiment.json",),
        form="json",
        writers=("experiments.records:write_record",),
        schema="experiments.records:ExperimentRecord",
        damage="refused",
    ),
    FileKind(
        name="configuration of a run",
        paths=("outputs/experiments/*/configs/*.yaml", "outputs/experiments/*/spec.yaml"),
        form="yaml",
        writers=(
            "experiments.schedule.opening:opened",
            "experiments.schedule.orchestrator:Orchestrator._start",
            "experiments.schedule.orchestrator:Orchestrator._reuse",
        ),
        damage="ignored",
    ),
    FileKind(
        name="figures of a run",
        paths=("outputs/experiments/*/runs/**",),
        form="json",
        writers=(
            "experiments.schedule.launcher:start_process",
            "experiments.point:leave_figures",
            "experiments.schedule.slurm_runs:ChainRun.go",
            "experiments.schedule.slurm_runs:JobRun.go",
            "experiments.simulation:simulate",
        ),
        damage="refused",
    ),
    FileKind(
        name="state of a local run",
        paths=("outputs/.runs/*/run.json",),
        form="json",
        writers=("pipeline.local_run:RecordedRun._write",),
        damage="ignored",
        schema="pipeline.local_run:LocalRun",
    ),
    FileKind(
        name="log of a local run",
        paths=("outputs/.runs/*/*.log",),
        form="text",
        writers=("pipeline.local_run:_logged",),
        damage="ignored",
    ),
    FileKind(
        name="comparison of an experiment",
        paths=("outputs/experiments/*/comparison/*",),
        form="text",
        writers=("experiments.compare:write_comparison",),
        damage="ignored",
    ),
    FileKind(
        name="decisions of early stopping",
        paths=("outputs/experiments/*/decisions.jsonl",),
        form="jsonl",
        writers=("experiments.schedule.asha:AshaSchedule._write",),
        schema="experiments.schedule.asha:AshaDecision",
        damage="refused",
    ),
    FileKind(
        name="background record",
        paths=("logs/background/*/background.json",),
        form="json",
        writers=("experiments.schedule.background:launch",),
        schema="experiments.schedule.background:BackgroundRun",
        damage="refused",
    ),
)

CHECKPOINT_FILES = (
    FileKind(
        name="marker of a folder",
        paths=("outputs/.episodes/*/.r2v", "results/report/*/.r2v"),
        form="text",
        writers=(
            "storage.removal:make_own",
            "rollout.episode_cache:EpisodeCache.make_folder",
            "report.marker:write_marker",
        ),
        damage="ignored",
    ),
    FileKind(
        name="plays",
        paths=("outputs/.episodes/*/*.jsonl",),
        form="jsonl",
        writers=(
            "rollout.episode_cache:PlayFile.append",
            "rollout.episode_cache:PlayFile._opened",
            "rollout.episode_cache:EpisodeCache.forget_faults",
            "rollout.episode_cache:publish_plays",
        ),
        damage="ignored",
        readers=("job candidates", "job router_features", "job verifier", "job router", "job evaluate"),
    ),
    FileKind(
        name="published plays",
        paths=("outputs/.episodes/*/published.json",),
        form="json",
        writers=("rollout.episode_cache:publish_plays",),
        damage="ignored",
        readers=("job candidates", "job router_features", "job evaluate"),
    ),
    FileKind(
        name="training checkpoint",
        paths=(
            *(f"{{{job}}}/checkpoint-*/*" for job in ("bc", "preference", "hierarchical")),
            *(f"{{verifier}}/{place}/checkpoint-*/state.pt" for place in ("final", "folds/*")),
        ),
        form="pickle",
        writers=(
            "policy.training.fit:_CheckpointCallback.on_save",
            "hrl.training.checkpoint:write",
            "hrl.training.checkpoint:begin",
            "hrl.training.checkpoint:write_part",
            "storage.checkpoint:seal",
            "verifier.train:_checkpoint",
        ),
        damage="ignored",
        readers=("train_policy --resume", "job verifier"),
    ),
    FileKind(
        name="hashes of a checkpoint",
        paths=("{verifier}/final/checkpoint-*/sha256.json", "{verifier}/folds/*/checkpoint-*/sha256.json"),
        form="json",
        writers=("storage.checkpoint:seal",),
        damage="ignored",
        readers=("job verifier",),
    ),
    FileKind(
        name="latest checkpoint",
        paths=("{any}/checkpoint-latest", "{verifier}/final/checkpoint-latest", "{verifier}/folds/*/checkpoint-latest"),
        form="link",
        writers=(),
        damage="ignored",
        readers=("train_policy --resume",),
    ),
    FileKind(
        name="replay buffer",
        paths=("{hierarchical}/replay/*.safetensors", "{hierarchical}/**/replay-*.safetensors"),
        form="tensors",
        writers=("hrl.training.replay_buffer:_write",),
        damage="ignored",
        readers=("job hierarchical",),
    ),
)


def _of_providers(name: str) -> tuple[str, ...]:
    """Return the paths of a file of this name among those of a provider's model."""
    rooms = (
        "{any}/.provider",
        "{any}/.provider-*",
        "outputs/.provider",
        "outputs/.replies/unnamed",
        "data/runs/*/provider",
    )
    return tuple(
        f"{room}/{name}"
        for room in (*rooms, *(f"{room}/*" for room in rooms), "results/batch_jobs/*/journal/*", "data/served/*")
    )


OTHER_FILES = (
    FileKind(
        name="served traffic",
        paths=("data/served/*/traffic.jsonl",),
        form="jsonl",
        writers=("serve.accounts.traffic:TrafficLog.open", "serve.accounts.traffic:TrafficLog.append"),
        damage="refused",
    ),
    FileKind(
        name="served session",
        paths=("data/served/*/sessions/*.jsonl.zst",),
        form="jsonl",
        writers=("serve.accounts.traffic:Recorder.write",),
        damage="refused",
    ),
    FileKind(
        name="keys of a server",
        paths=("data/served/*/keys",),
        form="text",
        writers=("serve.keys:server_keys",),
        damage="refused",
    ),
    FileKind(
        name="provider journal",
        paths=_of_providers("journal.jsonl"),
        form="jsonl",
        writers=(
            "llm.providers.spending.journal:Journal.open",
            "llm.providers.spending.journal:Journal._flush",
            "llm.providers.spending.journal:Journal._sync_later",
            "llm.providers.spending.journal:Journal.close",
        ),
        damage="paid",
        readers=("play again", "send again", "collect again"),
    ),
    FileKind(
        name="witness of a journal",
        paths=_of_providers("journal.jsonl.witness"),
        form="text",
        writers=("storage.witness:Witness.write",),
        damage="rebuilt",
        readers=("play again", "send again", "collect again"),
    ),
    FileKind(
        name="batch input",
        paths=_of_providers("inputs/*.jsonl"),
        form="jsonl",
        writers=("llm.providers.dispatch.batches:BatchDispatcher._begin",),
        damage="paid",
        readers=("send again",),
    ),
    FileKind(
        name="provider progress",
        paths=_of_providers("progress.json"),
        form="json",
        writers=("llm.providers.dispatch.progress:ProviderProgress.report",),
        damage="ignored",
        readers=("play again", "send again", "collect again"),
    ),
    FileKind(
        name="ledger entry",
        paths=("outputs/.replies/*.json",),
        form="json",
        writers=("llm.providers.spending.project:ProjectLedger.write",),
        schema="llm.providers.spending.project:JournalEntry",
        damage="ignored",
    ),
    FileKind(
        name="cap of the project",
        paths=("outputs/.replies/project-cap",),
        form="json",
        writers=("llm.providers.spending.project:ProjectLedger.set_cap",),
        damage="refused",
    ),
    FileKind(
        name="index of a journal",
        paths=("outputs/.replies/*.index",),
        form="text",
        writers=("llm.providers.spending.journal_view:write_index",),
        damage="rebuilt",
    ),
    FileKind(
        name="change of the ledger",
        paths=("outputs/.replies/changed",),
        form="text",
        writers=("llm.providers.spending.project:ProjectLedger.write",),
        damage="ignored",
    ),
    FileKind(
        name="merge record",
        paths=("data/**/*.meta.json",),
        form="json",
        writers=("data.merge:merge",),
        damage="ignored",
    ),
    FileKind(
        name="chain",
        paths=("outputs/.chains/*/chain.json",),
        form="json",
        writers=("slurm.chain.chain:write",),
        schema="slurm.chain.chain:Chain",
        damage="refused",
        readers=("status", "every status", "explain", "graph", "cost", "logs", "cancel", "resume", "heal", "run_all"),
    ),
    FileKind(
        name="chain configuration",
        paths=("outputs/.chains/*/config.yaml",),
        form="yaml",
        writers=("slurm.run_all:_submit_plan",),
        damage="refused",
        readers=("status", "resume", "job of a chain"),
    ),
    FileKind(
        name="job record",
        paths=(
            "outputs/.chains/*/jobs/*/*.json",
            "outputs/.chains/*/jobs/*/*.jsonl",
            "outputs/.chains/*/sizes.json",
            "outputs/.chains/bad_nodes.json",
        ),
        form="json",
        writers=(
            "slurm.job.runner:_write",
            "node_agent:meet",
            "slurm.chain.experience:remember",
            "slurm.chain.experience:learn",
            "slurm.job.helper_array:HelperArray._remember",
            "storage.record:recording",
            "storage.record:_append",
        ),
        damage="ignored",
        readers=("status", "explain", "cost", "logs"),
    ),
    FileKind(
        name="submission",
        paths=("outputs/.chains/*/submitit/**",),
        form="text",
        writers=(
            "slurm.client.submit:_submit_stage",
            "slurm.client.submit:_make_folder",
            "slurm.job.runner:_write_result",
        ),
        damage="refused",
        readers=("run_all",),
    ),
    FileKind(
        name="code snapshot",
        paths=("outputs/.snapshots/**", "outputs/.chains/*/code"),
        form="text",
        writers=("slurm.chain.snapshot:pin", "slurm.chain.snapshot:_write"),
        damage="rebuilt",
        readers=("run_all",),
    ),
    FileKind(
        name="game job",
        paths=("results/batch_jobs/*/raw/*.json",),
        form="json",
        writers=("game.service.store:save_setup", "game.service.store:save"),
        damage="refused",
        readers=("game analyse", "play again"),
    ),
    FileKind(
        name="game analysis",
        paths=("results/batch_jobs/*/analysis/*",),
        form="text",
        writers=("game.service.store:write_analysis", "cli.game.commands:_judge"),
        damage="rebuilt",
        readers=("game analyse", "play again"),
    ),
    FileKind(
        name="game figure",
        paths=("results/batch_jobs/*/figures/*",),
        form="text",
        writers=("plotting:save",),
        damage="rebuilt",
    ),
    FileKind(
        name="address of a teacher's server",
        paths=("outputs/.engines/*/address.json", "outputs/.engines/*/asked"),
        form="text",
        writers=("llm.engines.teacher_job:_keep",),
        damage="ignored",
    ),
    FileKind(
        name="configuration of a teacher's job",
        paths=("outputs/.engines/*/config.yaml",),
        form="yaml",
        writers=("slurm.job.teacher_job:TeacherJob.look",),
        damage="ignored",
    ),
    FileKind(
        name="submissions of a teacher's job",
        paths=("outputs/.engines/*/submitted.json",),
        form="json",
        writers=("slurm.job.teacher_job:TeacherJob._may_submit",),
        damage="ignored",
    ),
    FileKind(
        name="hours of a teacher's job",
        paths=("outputs/.engines/*/usage/*.json",),
        form="json",
        writers=("llm.engines.teacher_job:_write_usage",),
        damage="ignored",
    ),
    FileKind(
        name="pilot figures",
        paths=("{pilot}/pilot.json",),
        form="json",
        writers=("stages.pilot:run",),
        damage="remade",
        content=True,
    ),
    FileKind(
        name="pilot episodes",
        paths=("{pilot}/episodes/*.jsonl.zst",),
        form="jsonl",
        writers=("stages.pilot:run",),
        damage="remade",
        content=True,
    ),
    FileKind(
        name="pilot page",
        paths=("results/pilot/*.html", "results/*/pilot.html"),
        form="text",
        writers=("pipeline.pilot:written",),
        damage="ignored",
    ),
    FileKind(
        name="page of records",
        paths=("{router}/records.html",),
        form="text",
        writers=("stages.impute_router:impute_router",),
        damage="remade",
        content=True,
    ),
    FileKind(
        name="report page",
        paths=(
            "results/report/*/*.html",
            "results/report/*/*.json",
            "results/report/*/*.md",
            "results/report/*/data/*",
        ),
        form="text",
        writers=(
            "report.build:_fill",
            "report.build:write_figure",
            "report.viewer_data:_write_shard",
        ),
        damage="ignored",
    ),
    FileKind(
        name="report figure",
        paths=("results/report/*/figures/*",),
        form="text",
        writers=("plotting:save",),
        damage="ignored",
    ),
    FileKind(
        name="game labels",
        paths=("labels.jsonl",),
        form="jsonl",
        writers=("cli.game.labels:_label",),
        damage="refused",
    ),
    FileKind(
        name="bundle manifest",
        paths=("outputs/bundles/*/bundle.json",),
        form="json",
        writers=("serve.bundle.manifest:write_bundle_manifest",),
        schema="serve.bundle.manifest:BundleManifest",
        damage="refused",
        readers=("export",),
    ),
    FileKind(
        name="bundle content",
        paths=(
            "outputs/bundles/*/README.md",
            "outputs/bundles/*/prices.json",
            "outputs/bundles/*/settings.json",
            "outputs/bundles/*/domain.json",
            "outputs/bundles/*/policy/*",
            "outputs/bundles/*/verifier/*",
            "outputs/bundles/*/router/*",
        ),
        form="text",
        writers=(
            "pipeline.write_bundle:_fill",
            "pipeline.write_bundle:_fill_imputed",
            "pipeline.write_bundle:_write_settings",
            "pipeline.write_bundle:_written",
            "serve.bundle.domain:write_domain",
        ),
        damage="refused",
        readers=("export",),
    ),
    FileKind(
        name="duration",
        paths=("outputs/.durations/*.json",),
        form="json",
        writers=("storage.durations:record",),
        schema="storage.durations:Duration",
        damage="ignored",
        readers=("dry run",),
    ),
    FileKind(
        name="case index",
        paths=("outputs/micro/case_support/cases.npz", "outputs/micro/case_support/cases.json"),
        form="text",
        writers=("router.case_support:CaseIndex.save",),
        damage="remade",
        content=True,
    ),
    FileKind(
        name="counts of a benchmark",
        paths=("outputs/.benchmarks/*.json",),
        form="json",
        writers=("pipeline.plan.recorded:record",),
        schema="pipeline.plan.recorded:BenchmarkCounts",
        damage="ignored",
    ),
    FileKind(
        name="measured memory",
        paths=("outputs/.measured/*.json",),
        form="json",
        writers=("memory.store:_record",),
        damage="rebuilt",
    ),
    FileKind(
        name="recorded traffic",
        paths=("data/webarena/traces/*.json", "data/webarena/traces/*.har.gz"),
        form="text",
        writers=("envs.webarena.trace:_write",),
        damage="ignored",
    ),
    FileKind(
        name="changed sites",
        paths=("outputs/.sites/webarena-*.changed",),
        form="text",
        writers=("envs.webarena.environment:WebArenaEnvironment.reset",),
        damage="ignored",
    ),
    FileKind(
        name="log",
        paths=(
            "logs/*",
            "logs/wandb/**",
            "logs/tensorboard/**",
            "logs/trackers/*",
            "logs/background/*/nohup.log",
            "logs/background/*/return_code",
        ),
        form="text",
        writers=("trackers:tracked", "trackers:_started", "log:curve_line"),
        damage="ignored",
    ),
)

ELSEWHERE = {
    "served traffic",
    "served session",
    "keys of a server",
    "address of a teacher's server",
    "configuration of a teacher's job",
    "hours of a teacher's job",
    "submissions of a teacher's job",
    "pilot figures",
    "pilot episodes",
    "pilot page",
    "page of records",
    "lines set aside",
    "run elsewhere",
    "run index journal",
    "places elsewhere",
    "judge replies",
    "experiment record",
    "configuration of a run",
    "figures of a run",
    "comparison of an experiment",
    "decisions of early stopping",
    "background record",
    "metrics series",
    "task states",
    "replay buffer",
    "provider journal",
    "witness of a journal",
    "batch input",
    "provider progress",
    "ledger entry",
    "cap of the project",
    "index of a journal",
    "change of the ledger",
    "merge record",
    "chain",
    "chain configuration",
    "job record",
    "submission",
    "code snapshot",
    "game job",
    "game analysis",
    "game figure",
    "report page",
    "report figure",
    "game labels",
    "bundle manifest",
    "bundle content",
    "case index",
    "counts of a benchmark",
    "measured memory",
    "recorded traffic",
    "changed sites",
    "log",
}
"""Kinds without a file in the run of tests/micro.yaml: other suites make theirs."""

KINDS = RUN_FILES + ARTIFACT_FILES + EXPERIMENT_FILES + CHECKPOINT_FILES + OTHER_FILES

OUTSIDE = {
    "hrl.models.served:ServedRoles.publish": "adapters for a server, made again at each change and removed at the end",
    "llm.engines.servers:OwnServer._launch": "the log of a server, in a folder in /tmp that lives as long as it",
    "memory.on_device.calibration:save": "a file that the user names (r2v plan --probe)",
    "pipeline.hub:pull": "files that have kinds of their own, downloaded and renamed when every hash holds",
    "data.interchange.exporting:export_trajectories": "files that the user names (r2v export)",
    "distributed:run_rank": "a folder in /tmp that lives as long as its ranks",
    "rendezvous:locked": "a lock in that folder",
    "rendezvous:require_lock_seen": "the same lock",
    "cli.cluster.engine:_serve": "a key in a folder in /tmp that lives as long as the server",
    "node_agent:_run_agent": "a folder that lives as long as its ranks",
    "emulator.api.calls:Call.form": "the emulated provider's own state",
    "emulator.batches.lifecycle:accept": "the emulated provider's own state",
    "emulator.ledger:Ledger.__init__": "the emulated provider's own state",
    "emulator.ledger:Ledger._append": "the emulated provider's own state",
    "emulator.server_state:ServerState.save_file": "the emulated provider's own state",
    "emulator.server_state:ServerState.save_batch": "the emulated provider's own state",
    "slurm.doctor.doctor:_folders": "probes that are removed at once",
    "envs.swe.grading:_judged": "a log in a folder in /tmp, removed at once",
    "envs.swe.install:begin": "the repositories of the bundled instances, in the user's data",
    "envs.swe.install:install": "the bundled instances, in the user's data",
    "envs.swe.recipes:put_bug": "the repositories of the bundled instances, in the user's data",
    "envs.webarena.install:install_webarena": "the child interpreter, in the user's data",
    "envs.webarena.install:_fetch_punkt": "the child interpreter's language data, in the user's data",
    "envs.webarena.regrading:regrade": "a file that the user names (r2v webarena regrade --out)",
    "sandbox.slots:_take": "empty files that are locked, in the system's folder for temporary ones",
    "sandbox.supervising:main": "inside the sandbox, which is removed with its program",
    "sandbox.working_folder:unpack": "inside the sandbox, which is removed with its program",
    "slurm.site.script_text:write_script": "the user's sbatch scripts",
    "slurm.site.new_project:begin": "a project of the user's own, where nothing was before",
    "slurm.site.write_headers:choose": "the user's scripts/slurm/site.yaml",
    "data.registry:DataRegistry._new_folder": "folders",
    "data.store:TrajectoryStore.exclusive": "a lease",
    "data.store:TrajectoryStore.sync": "what append wrote",
    "pipeline.helping:helpers": "a configuration in a temporary folder, as long as its helpers live",
    "rollout.episode_cache:PlayFile.close": "what append wrote",
    "storage.checkpoint:saving": "what the trainer's own checkpoints write",
    "storage.checkpoint:_refusal": "a probe that is removed at once",
    "storage.integrity:_keep": "hashes of large files, in the user's cache folder",
    "storage.model_identity:_sha256": "hashes of base models, in the user's cache folder",
    "storage.integrity:set_aside": "a file renamed",
    "storage.files:write_text": "for its callers",
    "storage.files:write_json": "for its callers",
    "storage.files:write_lines": "for its callers",
    "pipeline.local_run:_reset_peak": "the kernel's counter of this process's own memory",
    "storage.files:replacing": "for its callers",
    "storage.lease:_attempt": "a lease: a folder with a file whose name is its holder",
    "storage.lease:_server_time": "a probe that is removed at once",
}
"""Writers of files outside a project, or of files in another writer's row, with the reason."""
