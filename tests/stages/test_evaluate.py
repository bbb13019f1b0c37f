"""Evaluation with an LLM that refuses: refused episodes are not measured, and the folder still verifies."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r2v.config import InferenceConfig, PerturbationsConfig, load
from r2v.data.episode import Episode, EpisodeMetadata
from r2v.data.split import assign
from r2v.data.store import StoredEpisodes
from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.envs.chain import ChainBenchmark
from r2v.envs.desk import Desk
from r2v.errors import EmptyResult, EnvironmentFault, InputError
from r2v.evaluation.audit.verify import verify_results
from r2v.evaluation.settings import EvaluateSettings, never_branched
from r2v.evaluation.setup import Setup, read_setup, write_setup
from r2v.llm.waves import Waves
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.randomness import uniform
from r2v.rollout.fork import branchable
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.work_queue import Cell
from r2v.router.labels import FeatureRow, write_rows
from r2v.stages.evaluate import _refuse_training_tasks, _router_scores, copy_router_plays
from r2v.storage.artifact import Artifact, Work
from r2v.storage.files import write_text
from r2v.verifier.labels import VerifierExample, write_examples
from tests.chains import specs
from tests.llm.talk import environment
from tests.rollouts import MemoryPlayer
from tests.router.rows import make_row
from tests.shared_sites import SharedShop

SMALL = (
    "env.options.num_tasks=60",
    "env.options.num_heldout=0",
    "evaluation.methods=[slm_base,llm_only]",
    "evaluation.seeds=[1]",
    "evaluation.num_tasks=4",
    "evaluation.conditions=[clean]",
    "evaluation.bootstrap=20",
    "teacher.provider=openai",
    "teacher.model_name=gpt-5.2",
    "teacher.mode=batch",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.02",
    "teacher.preflight=false",
    "teacher.reconcile_after=0.2",
)
INPUTS = ("router_features", "bc", "verifier")
"""Inputs of an evaluation that were learnt from tasks."""


def evaluate(root: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[int, ...], num_tasks: int = 4) -> Artifact:
    """Evaluate with a provider that refuses these of its requests, by number."""
    with Emulator(answer="desk", faults=[Fault("line_400", at=refused)], lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        settings = load(None, [*SMALL, f"evaluation.num_tasks={num_tasks}"])
        return run_job(settings, job("evaluate"), {}, root=root).artifact


def test_refused_questions_are_counted_and_the_folder_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = evaluate(tmp_path, monkeypatch, (2, 6))
    episodes = {
        name: list(StoredEpisodes(made.file(f"episodes/clean/{name}.jsonl.zst"))) for name in ("slm_base", "llm_only")
    }
    refused = [episode for episode in episodes["llm_only"] if episode.outcome == "refused"]
    assert len(refused) == 2 and all((one.outcome_reason or "").startswith("400") for one in refused)
    assert all(one.termination == "no_answer" and not one.success for one in refused)
    assert made.summary["n_env_faults"] == 0 and "not measured" not in caplog.text
    rows = {row["method"]: row for row in csv.DictReader(made.file("structured_results/main_table.csv").open())}
    assert (rows["llm_only"]["n_refused"], rows["slm_base"]["n_refused"]) == ("2", "0")
    assert float(rows["llm_only"]["success_rate"]) <= 0.5 and rows["llm_only"]["n_tasks"] == "4"
    verified = verify_results(made.folder)
    assert not any(counts.faults for counts in verified.counts.values()) and verified.num_episodes == 8


def test_where_every_question_is_refused_the_stage_ends_with_exit_code_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentFault, match="no request was answered") as ended:
        evaluate(tmp_path, monkeypatch, tuple(range(1, 100)), num_tasks=12)
    assert ended.value.exit_code == 5


def test_tasks_that_change_a_shared_world_are_played_and_verify(tmp_path: Path) -> None:
    shop = ("env.benchmark=tests.shared_sites:SharedShop", "env.options={num_tasks: 60}", *SMALL[2:7])
    made = run_job(load(None, [*shop]), job("evaluate"), {}, root=tmp_path).artifact
    setup = read_setup(made.folder)
    mutating = [task.task_id for task in SharedShop(num_tasks=60).tasks() if task.mutates]
    assert setup.never_branched == [name for name in setup.tasks["clean"] if name in mutating] != []
    episodes = list(StoredEpisodes(made.file("episodes/clean/llm_only.jsonl.zst")))
    assert len(episodes) == 4 and all(episode.success for episode in episodes)
    assert verify_results(made.folder, trust=True).num_episodes == 8
    with pytest.raises(InputError, match="never_branched"):
        write_setup(made.folder, replace(setup, never_branched=[]))
        verify_results(made.folder, trust=True)


@pytest.mark.parametrize(
    ("overrides", "threshold", "along"),
    [
        ((), 0.4, "r2v"),
        ((), 1.0, "slm_only"),  # a router that is never called has no say
        ((), None, "slm_only"),
        (("router.rounds=0",), 0.4, "slm_only"),
        (("router.label=episode",), 0.4, "slm_only"),
        (("evaluation.methods=[slm_only,llm_only,random_router]",), 0.4, "slm_only"),
    ],
)
def test_gains_are_executed_along_the_pair_that_the_router_learnt_from(
    overrides: tuple[str, ...], threshold: float | None, along: str
) -> None:
    assert EvaluateSettings.of(load(None, [*overrides])).gains_along(threshold) == along


@pytest.mark.parametrize(
    ("methods", "overrides", "read"),
    [
        ("slm_only,llm_only,random_router", [], False),
        ("slm_only,entropy_router", [], True),
        ("slm_only,r2v", [], True),
        ("slm_only,r2v", ["router.features=[page]"], True),  # r2v may act by the score of entropy_router
        ("slm_only,r2v", ["router.features=[page]", "router.choose_score=false"], False),
    ],
)
def test_log_probabilities_are_asked_for_where_a_score_reads_them(
    methods: str, overrides: list[str], read: bool
) -> None:
    settings = EvaluateSettings.of(load(None, [f"evaluation.methods=[{methods}]", *overrides]))
    assert settings.reads_logprobs is read


def test_a_coins_scores_are_of_the_episodes_seed_whatever_the_tasks_name(tmp_path: Path) -> None:
    """A user's own task may be named like the beginning of a seed, "/s9"."""
    chain = ChainBenchmark(num_tasks=1)
    task = replace(chain.tasks()[0], task_id="shop/s9/order")
    world = RolloutWorld(chain, PerturbationsConfig(), InferenceConfig())
    played = [replace(specs(chain, 1)[0], task=task, seed=seed) for seed in (3, 4)]
    rows = [
        FeatureRow(
            state_id=f"{world.identity_of(spec)}#0",
            episode_id=world.identity_of(spec),
            task_id=task.task_id,
            split="evaluation",
            step_idx=0,
            actor="slm",
            features={},
            slm_episode_success=True,
        )
        for spec in played
    ]

    async def play(spec: EpisodeSpec) -> list[Episode | FeatureRow]:
        about = EpisodeMetadata(task_id=task.task_id, goal=task.goal, benchmark="chain")
        episode = Episode(episode_id=world.identity_of(spec), metadata=about, steps=(), success=True)
        return [episode, rows[played.index(spec)]]

    cell = Cell(what="gains", specs=played, play=play, kinds=(Episode, FeatureRow))
    runner: Any = SimpleNamespace(world=world, player=MemoryPlayer(Waves()), routers={})
    settings = EvaluateSettings.of(load(None, ["evaluation.methods=[slm_only,llm_only,random_router]"]))
    [scores] = _router_scores(settings, runner, {"clean": cell}, tmp_path)
    assert list(scores.p) == [round(uniform(seed, task.task_id, 0, "router"), 6) for seed in (3, 4)]


def test_cells_that_branch_leave_out_what_changes_a_shared_world() -> None:
    shop, chain = SharedShop(num_tasks=6), ChainBenchmark(num_tasks=6)
    settings = EvaluateSettings.of(load(None, ["evaluation.oracle_tasks=3"]))
    some = specs(shop, 6)
    for name, left in (
        ("oracle_router", ["t-01", "t-02", "t-04"]),
        ("gains", ["t-01", "t-02", "t-04", "t-05"]),
        ("r2v", [task.task_id for task in shop.tasks()]),
    ):
        assert [spec.task.task_id for spec in settings.limited(shop, some, name)] == left
        setup = Setup(
            benchmark="shop",
            methods=("r2v",),
            seeds=(1,),
            tasks={"clean": [task.task_id for task in shop.tasks()]},
            limits=settings.limits,
            never_branched=never_branched(shop, {"clean": some}),
        )
        assert setup.tasks_of("clean", name) == left
    changing = [replace(spec, task=replace(spec.task, mutates=True)) for spec in specs(chain, 6)]
    assert branchable(chain, changing, "oracle") == changing, "whose worlds share nothing, each has its own"
    with pytest.raises(EmptyResult, match="oracle: all 2 episodes change a world that others share"):
        branchable(shop, [spec for spec in some if spec.task.mutates], "oracle")


def test_plays_of_the_router_stage_replace_those_that_a_killed_attempt_copied(tmp_path: Path) -> None:
    made, results = tmp_path / "router", tmp_path / "results"
    files = {f"calibration/{name}": name for name in ("r2v.jsonl.zst", "states.json")} | {"r2v.json": "the model"}
    for name, text in files.items():
        write_text(made / name, text)
    router = Artifact(stage="", fingerprint="", folder=made, files=dict.fromkeys(files, ""))
    write_text(results / "calibration" / "router" / "states.json", "cut sh")
    for _ in range(2):
        copy_router_plays(router, results)
    copied = {path.relative_to(results).as_posix(): path.read_text() for path in results.rglob("*") if path.is_file()}
    assert copied == {f"calibration/router/{name}": name for name in ("r2v.jsonl.zst", "states.json")}


def test_thresholds_are_placed_on_tasks_of_the_calibration_split() -> None:
    settings = EvaluateSettings.of(load(None, []))
    desk = Desk()
    placed, evaluated = settings.calibration_specs(desk), settings.specs(desk, "noisy")
    assert {spec.split for spec in placed} == {"calibration"}
    splits = assign(desk.tasks())
    assert {splits[spec.task.task_id] for spec in placed} == {"calibration"}
    assert {splits[spec.task.task_id] for spec in evaluated} == {"evaluation"}


@pytest.mark.parametrize(
    "planted", ["router_features/router_features.jsonl", "bc/tasks.json", "verifier/verifier_data.jsonl"]
)
def test_a_task_that_anything_was_learnt_from_is_not_evaluated(planted: str, tmp_path: Path) -> None:
    """The router's features, the cloned episodes and the verifier's labels, each with one such task among others."""
    some = specs(ChainBenchmark(num_tasks=3), 3)
    inputs = {name: Artifact(stage=name, fingerprint="", folder=tmp_path / name, files={}) for name in INPUTS}
    work = Work(folder=tmp_path, fingerprint="", inputs=inputs, root=tmp_path)
    for name in INPUTS:
        (tmp_path / name).mkdir()

    def learn_from(task: str) -> None:
        write_rows(inputs["router_features"].folder / "router_features.jsonl", [replace(make_row(0), task_id=task)])
        (inputs["bc"].folder / "tasks.json").write_text(json.dumps(["chain-other", task]))
        label = VerifierExample(
            state_id="e#0", task_id=task, split="train", messages=(), action="a", target=1.0, label_source="outcome"
        )
        write_examples(inputs["verifier"].folder / "verifier_data.jsonl", [label])

    learn_from("chain-another")
    _refuse_training_tasks(work, {"noisy": some})
    kept = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    learn_from(some[1].task.task_id)
    for path, content in kept.items():
        if path != tmp_path / planted:
            path.write_bytes(content)
    with pytest.raises(
        InputError, match=f"{planted}: task chain-00001 is to be evaluated but was learnt from"
    ) as refused:
        _refuse_training_tasks(work, {"noisy": some})
    assert refused.value.exit_code == 3
