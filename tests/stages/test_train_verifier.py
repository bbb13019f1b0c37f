"""A verifier that learns from a judge: the teacher's model, called through its provider, each request paid once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import Config, TeacherConfig, load, to_yaml
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step, episode_id
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.emulator import EmulatedRequest, Emulator, Fault, Lifecycle, Timing
from r2v.emulator.answers import load_answer
from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.pipeline.inputs import published, require_world
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.policy.export import export
from r2v.policy.load import Loaded
from r2v.policy.prompt_encoder import build_messages
from r2v.randomness import digest
from r2v.rollout.model_factory import require_provider, verifier_scorer
from r2v.stages.train_verifier import STAGE, judge_teacher, label_source
from r2v.stages.verifier_training import VerifierSettings, _verifiers, fold_of, trained, values_out_of_fold
from r2v.storage.artifact import JOURNAL, Artifact, Work
from r2v.storage.files import write_text
from r2v.verifier.labels import VerifierExample, outcome_examples, read_examples
from r2v.verifier.scores import auroc
from r2v.wire.message import Message
from tests import tiny_models, warm
from tests.llm.talk import HeldLifecycle, environment
from tests.paid import paid_bodies

RUN, OTHER_RUN = "desk_scripted_m_20260101T000000", "desk_scripted_m_20260102T000000"
MODELS = {"openai": "gpt-5.2", "anthropic": "claude-haiku-4-5"}
KEYS = (b"sk-test-0123456789", b"sk-ant-test-0123456789")
TASKS, STEPS, WRONG = 12, ("get key", "open door", "close door", "done"), 2
QUESTIONS = TASKS * (len(STEPS) + WRONG)

Serve = Callable[..., AbstractContextManager[Emulator]]


def judge(question: EmulatedRequest) -> str:
    """Prefer doors, whatever the outcome of the episode."""
    assert question.messages[0].content.startswith("You judge one step")
    action = json.loads(question.messages[-1].content)["proposed_action"]
    return json.dumps({"score": 9 if "door" in action else 1})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that starts an emulated judge and points both SDKs to it."""

    @contextmanager
    def serve(*faults: Fault, **settings: Any) -> Iterator[Emulator]:
        usual: dict[str, Any] = {"answer": judge, "lifecycle": Lifecycle(polls=1)}
        with Emulator(faults=faults, **(usual | settings)) as emulator:
            for name, value in environment(emulator).items():
                monkeypatch.setenv(name, value)
            yield emulator

    return serve


def _episode(task: int) -> Episode:
    steps = tuple(
        Step(step_idx=at, observation=Observation(raw_text=f"w{task} w{at}"), action=Action(raw_text=text))
        for at, text in enumerate(STEPS)
    )
    about = EpisodeMetadata(task_id=f"t{task:02}", goal=f"open w{task}", benchmark="desk", seed=1, split="train")
    return Episode(episode_id=episode_id(f"t{task:02}", 1, None), metadata=about, steps=steps, success=task % 3 > 0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "base"
    tokenizer = tiny_models.tokenizer()
    export(Loaded(model=tiny_models.model(len(tokenizer), 0, torch.float32), tokenizer=tokenizer, name="base"), folder)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a checkout with one collected run: 12 tasks of four steps, 8 of which succeed."""
    with DataRegistry(tmp_path / "data").begin_run(
        benchmark="desk", provider="scripted", model_name="m", fingerprint="f", config={}, run_id=RUN
    ) as handle:
        for task in range(TASKS):
            handle.store.append(_episode(task))
        handle.finish(expected=TASKS)
    return tmp_path


def overrides(base: Path, provider: str, *more: str) -> list[str]:
    return [
        "env.options.num_tasks=36",
        "env.options.num_heldout=0",
        f"data.runs=[{RUN}]",
        f"policy.model_name={base}",
        "policy.device=cpu",
        "policy.max_seq_len=64",
        "inference.max_new_tokens=6",
        "rollout.workers=1",
        "training.verifier.num_epochs=6",
        "training.verifier.lr=0.02",
        f"verifier.num_corruptions={WRONG}",
        "candidates.num_folds=2",
        "verifier.mode=llm_judge",
        f"teacher.provider={provider}",
        f"teacher.model_name={MODELS[provider]}",
        "teacher.max_usd=50",
        "teacher.flush_seconds=0.2",
        "teacher.poll_seconds=0.02",
        "teacher.preflight=false",
        "teacher.reconcile_after=0.3",
        *more,
    ]


def train(root: Path, config: Config) -> Artifact:
    return run_job(config, job("verifier"), {"collect": published(config, "collect", root)}, root=root).artifact


def journal_of(root: Path) -> Path | None:
    """Return the path of the judge's journal, as soon as there is one."""
    return next((root / "outputs" / ".artifacts").glob(f"verifier-*/{JOURNAL}/journal.jsonl"), None)


def paid_once(emulator: Emulator, questions: int = QUESTIONS) -> bool:
    statement = emulator.ledger()
    return (
        len(statement.paid()) == questions
        and set(statement.paid().values()) == {1}
        and set(paid_bodies(statement).values()) == {1}
    )


def test_a_head_learns_what_the_judge_says_in_every_mode_of_every_provider(
    served: Serve, base: Path, root: Path
) -> None:
    found = {}
    ways = (("openai", "batch"), ("openai", "concurrent"), ("openai", "auto"), ("anthropic", "auto"))
    for provider, mode in ways:
        config = load(None, overrides(base, provider, f"teacher.mode={mode}", "training.save_steps=1000"))
        with served() as emulator:
            made = run_job(
                config, job("verifier"), {"collect": published(config, "collect", root)}, root=root, force=True
            ).artifact
            assert paid_once(emulator)
            assert {bill.mode for bill in emulator.ledger().bills} <= {
                "batch": {"batch"},
                "concurrent": {"sync"},
                "auto": {"batch", "sync"},
            }[mode]
        found[provider, mode] = {name: made.files[name] for name in made.files if "report" not in name}
        assert not any(key in path.read_bytes() for path in root.rglob("*") if path.is_file() for key in KEYS)
    one, *others = found.values()
    assert others == [one] * 3 and "verifier_data.jsonl" in one, "how the questions travelled changes no weight"
    examples = read_examples(made.file("verifier_data.jsonl"))
    assert len(examples) == QUESTIONS and {example.label_source for example in examples} == {"judge"}
    assert all(example.target == (0.9 if "door" in example.action else 0.1) for example in examples)
    assert len({example.kind for example in examples}) > 1, "plausible wrong actions are judged too"
    _check_head(config, made, examples)
    report = json.loads(made.file("judge_report.json").read_text())
    assert report["questions"] == {"read": QUESTIONS, "unreadable": 0, "refused": 0}
    assert report["mean_score"]["success"] == report["mean_score"]["failure"] == 0.5


def _check_head(config: Config, made: Artifact, examples: Sequence[VerifierExample]) -> None:
    """Use the verifier as candidates and evaluate do: it must prefer doors, as the judge."""
    waves = Waves(workers=1)
    score = verifier_scorer(config.policy, made.file("final"), config.inference, config.rollout, waves)

    async def ask(action: str) -> float:
        return (await score(ScoreRequest(messages=examples[0].messages, action=action))).score

    door, key = waves.run([lambda: ask("open door"), lambda: ask("get key")])
    assert door > 0.6 > 0.4 > key
    assert json.loads(made.file("verifier_report.json").read_text())["auroc"] > 0.95


def test_the_price_is_told_before_anything_is_asked(
    served: Serve, base: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(None, overrides(base, "openai", "teacher.mode=concurrent"))
    told: list[str] = []

    def answer(question: EmulatedRequest) -> str:
        told.append(caplog.text)
        return judge(question)

    with served(answer=answer) as emulator, caplog.at_level("INFO", logger="r2v"):
        train(root, config)
        asked = sum(bill.tokens_in for bill in emulator.ledger().bills)
    assert (
        f"judge will be asked: requests={QUESTIONS} questions to gpt-5.2, about " in told[0]
        and "by direct calls (prices of" in told[0]
    )
    guessed = int(told[0].split("questions to gpt-5.2, about ")[1].split(" ")[0].replace(",", ""))
    assert asked / 3 < guessed < 3 * asked


def command(base: Path, provider: str, *more: str) -> list[str]:
    return ["train_verifier", "--overrides", *overrides(base, provider, *more)]


@pytest.mark.parametrize("provider", ["openai", pytest.param("anthropic", marks=pytest.mark.whole)])
def test_killed_while_a_batch_is_out_and_started_again_it_pays_once(
    provider: str, served: Serve, base: Path, root: Path
) -> None:
    words = command(base, provider, "teacher.mode=batch", "teacher.batch_size=30")
    held = HeldLifecycle()
    with served(lifecycle=held) as emulator:
        process = warm.start(root, *words)
        # A create that is killed on its way to the provider is searched for as long as it could still arrive.
        while len(emulator.ledger().bills) < QUESTIONS and process.poll() is None:
            time.sleep(0.02)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not list(root.rglob("verifier_data.jsonl"))
        held.release()
        again = warm.start(root, *words)
        told = again.communicate(timeout=100)[1]
        assert again.returncode == 0, told
        assert paid_once(emulator)
    written = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert not any(key in written + told.encode() for key in KEYS), "no key in any file, log or line"


def test_a_create_that_nobody_confirmed_is_waited_for_and_left_with_75(served: Serve, base: Path, root: Path) -> None:
    """The batch was made, and is not listed yet: it is neither taken for lost nor made again."""
    words = command(base, "openai", "teacher.mode=batch", "teacher.reconcile_after=300")
    faults = Fault("commit_then_500", at=1), Fault("listed_late", at=1)
    with served(*faults, timing=Timing(late=5.0)) as emulator:
        process = warm.start(root, *words)
        while process.poll() is None and not ((path := journal_of(root)) and b'"unknown"' in path.read_bytes()):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 75, told
        assert len(emulator.ledger().bills) == QUESTIONS
        again = warm.start(root, *words)
        told = again.communicate(timeout=100)[1]
        assert again.returncode == 0, told
        assert " id=batch_" in told and paid_once(emulator)


def test_what_the_judge_does_not_judge_is_left_out_and_counted(served: Serve, base: Path, root: Path) -> None:
    def answer(question: EmulatedRequest) -> str:
        if len(question.messages) == 1:
            return "ok"  # the plain request that clears the account
        return "I cannot say." if "w0 w0" in question.messages[-1].content else judge(question)

    config = load(None, overrides(base, "openai", "teacher.mode=batch"))
    with served(Fault("line_400", at=(QUESTIONS - 1, QUESTIONS)), answer=answer):
        made = train(root, config)
    report = json.loads(made.file("judge_report.json").read_text())
    assert report["questions"]["refused"] == 2 and report["questions"]["unreadable"] == len(STEPS) + WRONG
    assert len(read_examples(made.file("verifier_data.jsonl"))) == report["questions"]["read"] == QUESTIONS - 2 - 6


def test_a_question_without_an_answer_ends_the_run_and_the_next_one_pays_for_that_alone(
    served: Serve, base: Path, root: Path
) -> None:
    config = load(None, overrides(base, "openai", "teacher.mode=batch", "teacher.attempts=1"))
    with served(Fault("line_500", at=(3, 7))) as emulator:
        with pytest.raises(EnvironmentFault, match=f"no answer to 2 of {QUESTIONS} questions"):
            train(root, config)
        assert len(emulator.ledger().bills) == QUESTIONS - 2
        train(root, config)
        assert paid_once(emulator)


def test_the_cap_holds_and_a_higher_one_goes_on(served: Serve, base: Path, root: Path) -> None:
    common = ("teacher.mode=batch", "teacher.batch_size=8")
    with served() as emulator:
        with pytest.raises(EnvironmentFault, match=r"teacher.max_usd=0.01.*raise teacher.max_usd"):
            train(
                root,
                load(
                    None,
                    overrides(base, "openai", *common, "teacher.max_usd=0.01", "teacher.usd_in=2", "teacher.usd_out=8"),
                ),
            )
        first = len(emulator.ledger().bills)
        journal = journal_of(root)
        assert journal is not None
        spent = json.loads(journal.with_name("progress.json").read_text())["usd"]
        assert 0 < first < QUESTIONS and spent <= 0.01
        train(root, load(None, overrides(base, "openai", *common, "teacher.usd_in=2", "teacher.usd_out=8")))
        assert paid_once(emulator)


def test_labels_that_are_there_are_not_asked_for_again(served: Serve, base: Path, root: Path) -> None:
    """Stopped while it was training: the provider is gone, and is not needed to resume."""
    config = load(None, overrides(base, "anthropic", "teacher.mode=concurrent"))
    with served():
        first = train(root, config)
    (first.folder / "artifact.json").unlink()
    assert train(root, config).data_sha256 == first.data_sha256


def test_the_label_source_says_the_same_as_the_mode(base: Path) -> None:
    from r2v.envs.base import load_benchmark

    desk = load_benchmark("desk", {"num_tasks": 36, "num_heldout": 0})
    for said, source in (
        (("verifier.mode=llm_judge",), "judge"),
        (("verifier.label_sources=[judge]",), "judge"),
        (("verifier.mode=llm_judge", "verifier.label_sources=[judge]"), "judge"),
        ((), "corrupted"),
        (("teacher.provider=openai",), "outcome"),
        (("verifier.label_sources=[outcome]",), "outcome"),
    ):
        settings = VerifierSettings.of(load(None, list(said)))
        assert label_source(settings, deterministic=desk.capabilities.deterministic) == source
    for said, told in (
        (("verifier.mode=llm_judge", "verifier.label_sources=[outcome]"), "under verifier.mode"),
        (("verifier.label_sources=[jugde]",), "must be one of"),
        (("verifier.label_sources=[judge,outcome]",), "must be one of"),
    ):
        with pytest.raises(UsageError, match=told):
            load(None, list(said))


def test_a_judged_verifier_reads_the_recorded_tools_and_needs_no_world(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEYS[0].decode())
    away = "env.benchmark=nowhere.at:All"
    for said in (overrides(base, "openai"), ["verifier.label_sources=[outcome]"]):
        require_world(VerifierSettings.of(load(None, [*said, away])))
    with pytest.raises(UsageError, match=r"nowhere.at:All"):
        require_world(VerifierSettings.of(load(None, [away])))


def test_labels_of_temporal_differences_lie_between_outcomes_and_values_of_other_tasks(base: Path, root: Path) -> None:
    def made(gae_lambda: float) -> Artifact:
        own = ["verifier.mode=trained", "verifier.label_sources=[td]", f"verifier.gae_lambda={gae_lambda}"]
        return train(root, load(None, overrides(base, "openai", *own)))

    outcomes = read_examples(made(1.0).file("verifier_data.jsonl"))
    assert len(outcomes) == TASKS * len(STEPS) and {one.label_source for one in outcomes} == {"td"}
    assert all(one.target == float(int(one.task_id[1:]) % 3 > 0) for one in outcomes), "Monte Carlo"
    mixed = made(0.5)
    for ends, steps in (("done", True), ("get key", False)):
        found = [one.target for one in read_examples(mixed.file("verifier_data.jsonl")) if one.action == ends]
        assert all(target in (0.0, 1.0) for target in found) == steps, "the last step has its outcome alone"
    for fold in range(2):  # values come from verifiers that have not seen the task
        assert (mixed.folder / "values" / "folds" / str(fold)).is_dir()


def test_no_task_teaches_the_verifier_of_its_own_fold_and_every_task_teaches_all_others() -> None:
    """Cross-fitting: a pair of a task is made by scores of a verifier that has never seen the task."""
    cfg = VerifierSettings.of(load(None, ["candidates.num_folds=3"]))
    train = [
        VerifierExample(
            state_id=f"t{at % 30:02}/s1#{at // 30}",
            task_id=f"t{at % 30:02}",
            split="train",
            messages=(),
            action="open door",
            target=float(at % 2),
            label_source="executed",
        )
        for at in range(90)
    ]
    learns = {place.relative_to("made").as_posix(): part for place, part in _verifiers(cfg, train, Path("made"))}
    assert list(learns) == ["final", "folds/0", "folds/1", "folds/2"], "the one that is used comes first"
    assert list(learns["final"]) == train
    for fold in range(3):
        own = [one for one in train if fold_of(one.task_id, 3) == fold]
        assert own and not {one.task_id for one in own} & {one.task_id for one in learns[f"folds/{fold}"]}
        assert list(learns[f"folds/{fold}"]) == [one for one in train if one not in own]
    few = VerifierSettings.of(load(None, ["candidates.num_folds=3", "training.verifier.max_examples=20"]))
    drawn = {place.relative_to("made").as_posix(): part for place, part in _verifiers(few, train, Path("made"))}
    for place, part in drawn.items():
        assert len(part) == 20 and {one.state_id for one in part} <= {one.state_id for one in learns[place]}


def _outcome_labels(base: Path, *more: str) -> Config:
    own = ("verifier.mode=trained", "verifier.label_sources=[outcome]", *more)
    return load(None, overrides(base, "openai", *own))


def test_a_report_without_held_out_tasks_is_of_the_folds_that_have_not_seen_them(base: Path, root: Path) -> None:
    """Outcomes depend on the task alone, and each task has words of its own: memorized labels are worth nothing."""
    config = _outcome_labels(base)
    made = train(root, config)
    report = json.loads(made.file("verifier_report.json").read_text())
    examples = read_examples(made.file("verifier_data.jsonl"))
    assert report["measured_on"] == "training tasks, out of fold" and report["examples"] == len(examples)
    waves, scores = Waves(workers=1), {}
    for folder in (made.file("final"), *(made.file("folds") / str(fold) for fold in range(2))):
        score = verifier_scorer(config.policy, folder, config.inference, config.rollout, waves)
        asked = (partial(score, ScoreRequest(messages=one.messages, action=one.action)) for one in examples)
        scores[folder.name] = [reply.score for reply in waves.run(asked)]
    own = [scores[str(fold_of(one.task_id, 2))][at] for at, one in enumerate(examples)]
    good = [one.good for one in examples]
    assert report["auroc"] == pytest.approx(auroc(own, good), abs=0.01)
    assert auroc(scores["final"], good) > report["auroc"] + 0.2, "its training fit, which is not reported"
    settings = (made.file("final"), *made.file("folds").iterdir())
    temperatures = {json.loads((one / "verifier.json").read_text())["temperature"] for one in settings}
    assert temperatures == {report["temperature"]} != {1.0}


def test_a_report_is_of_calibration_tasks_where_some_are_labelled(base: Path, root: Path) -> None:
    with DataRegistry(root / "data").begin_run(
        benchmark="desk", provider="scripted", model_name="m", fingerprint="g", config={}, run_id=OTHER_RUN
    ) as handle:
        for task in range(TASKS, TASKS + 4):
            episode = _episode(task)
            handle.store.append(replace(episode, metadata=replace(episode.metadata, split="calibration")))
        handle.finish(expected=4)
    report = train(root, _outcome_labels(base, f"data.runs=[{RUN},{OTHER_RUN}]")).summary["report"]
    assert (report["measured_on"], report["tasks"]) == ("calibration tasks", 4)
    assert report["auroc_last_observation_hidden"] is not None and report["auroc_teacher_alone"] is None


def test_values_stand_by_their_examples_in_whatever_order_they_come(base: Path, root: Path) -> None:
    config = _outcome_labels(base)
    collect = published(config, "collect", root)
    work = Work(folder=root / "made", fingerprint="f", root=root, inputs={"collect": collect})
    work.folder.mkdir()
    episodes = DataRegistry(root / "data").iter_episodes([RUN])
    examples = outcome_examples(episodes, build_messages, failed=lambda left: 0.0)
    values = values_out_of_fold(VerifierSettings.of(config), examples, work)
    assert len(set(values)) > TASKS
    assert values_out_of_fold(VerifierSettings.of(config), examples[::-1], work)[::-1] == values


def test_a_scripted_teacher_judges_nothing(base: Path, root: Path) -> None:
    config = load(None, [*overrides(base, "openai"), "teacher.provider=scripted", "teacher.model_name=expert"])
    with pytest.raises(
        UsageError, match="run desk_scripted_m_20260101T000000 was collected by no provider's model either"
    ):
        train(root, config)


def test_only_a_job_that_asks_needs_a_key(base: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels from outcomes need no call, though the teacher is a provider's; a judge does."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    judged, trained = (load(None, overrides(base, "openai", *more)) for more in ((), ("verifier.mode=trained",)))
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set"):
        train(root, judged)
    assert VerifierSettings.of(judged).asks_teacher and not VerifierSettings.of(trained).asks_teacher
    require_provider(trained.teacher, asked=False)
    with pytest.raises(UsageError, match="no price in genai-prices"):
        require_provider(replace(trained.teacher, model_name="gpt-99"), asked=False)
    (root / "made").mkdir()
    STAGE.run(
        STAGE.sections(trained),
        Work(folder=root / "made", fingerprint="f", root=root, inputs={"collect": published(trained, "collect", root)}),
    )
    assert {example.label_source for example in read_examples(root / "made" / "verifier_data.jsonl")} == {"outcome"}


def test_a_judge_that_holds_with_everything_teaches_nothing(served: Serve, base: Path, root: Path) -> None:
    with served(answer=lambda question: '{"score": 10}'):
        made = train(root, load(None, overrides(base, "openai", "teacher.mode=concurrent")))
    assert "0 bad ones: a verifier learns from both" in made.summary["left_out"] and trained(made) is None


def test_the_judge_is_told_what_the_policy_would_see() -> None:
    from r2v.verifier.judge import question

    asked = question(ScoreRequest(messages=(Message(role="user", content="goal"),), action="open door"))
    assert json.loads(asked[1].content) == {
        "conversation": [{"role": "user", "content": "goal"}],
        "proposed_action": "open door",
    }


def opinion(action: str) -> int:
    """Return a score out of 10, by the action's words alone."""
    return 9 * (digest(action)[0] % 2)


def expert_and_judge(request: EmulatedRequest) -> str | None:
    """Play the bundled benchmark as its expert, and judge by `opinion`."""
    if request.messages[0].content.startswith("You judge one step"):
        return json.dumps({"score": opinion(json.loads(request.messages[-1].content)["proposed_action"])})
    return load_answer("desk")(request)


def test_executed_labels_count_where_the_judge_confirms_them(served: Serve, base: Path, root: Path) -> None:
    more = ("verifier.mode=trained", "verifier.label_sources=[consensus]", "verifier.num_tasks=3", "env.options={}")
    config = load(None, overrides(base, "openai", *more, "training.verifier.num_epochs=1"))
    assert VerifierSettings.of(config).needs_world and VerifierSettings.of(config).asks_teacher
    with served(answer=expert_and_judge):
        made = train(root, config)
    examples = read_examples(made.file("verifier_data.jsonl"))
    assert {one.label_source for one in examples} == {"consensus"}
    assert all(abs(one.target - opinion(one.action) / 10) <= 0.3 + 1e-9 for one in examples)
    assert {one.kind == "teacher" for one in examples} == {True, False}
    counts = made.summary["consensus"]
    assert counts["kept"] == len(examples) and counts["disputed"] > 0
    report = json.loads(made.file("judge_report.json").read_text())
    assert report["examples"] == counts["kept"] + counts["disputed"]


def test_a_scripted_teacher_confirms_nothing(base: Path, root: Path) -> None:
    config = load(None, overrides(base, "openai", "verifier.mode=trained", "verifier.label_sources=[consensus]"))
    scripted = replace(config, teacher=replace(config.teacher, provider="scripted"))
    with pytest.raises(UsageError, match="a judge needs an LLM"):
        VerifierSettings.of(scripted).require_anew()


ASKED = (
    "teacher.provider=anthropic",
    "teacher.model_name=claude-haiku-4-5",
    "teacher.base_url=http://localhost:8000",
    "teacher.mode=batch",
    "teacher.api_key_env=LAB_API_KEY",
    "teacher.model={temperature: false}",
)


def run(artifacts: Path, fingerprint: str, *settings: str) -> RunManifest:
    """Return a run with its configuration beside its artifact."""
    config = load(None, list(settings))
    write_text(artifacts / f"collect-{fingerprint}" / "config.yaml", to_yaml(config))
    return RunManifest(
        run_id=f"desk_x_m_20260101T00000{fingerprint}",
        benchmark="desk",
        provider=config.teacher.provider,
        model_name=config.teacher.model_name,
        output_dir=artifacts,
        fingerprint=fingerprint,
        started_at="",
        updated_at="",
    )


def test_the_collections_settings_hold_with_what_is_given_over_them(tmp_path: Path) -> None:
    runs = [run(tmp_path, "1", *ASKED), run(tmp_path, "2", *ASKED)]
    found = judge_teacher(TeacherConfig(), runs, tmp_path)
    assert found == load(None, list(ASKED)).teacher, "the endpoint, the mode and the key's name too"
    capped = judge_teacher(TeacherConfig(max_usd=3, mode="concurrent"), runs, tmp_path)
    assert (capped.max_usd, capped.mode, capped.model_name) == (3, "concurrent", "claude-haiku-4-5")
    own = TeacherConfig(provider="openai", model_name="gpt-6-luna")
    assert judge_teacher(own, runs, tmp_path) is own


def test_who_cannot_be_found_is_asked_for(tmp_path: Path) -> None:
    paid, scripted = run(tmp_path, "1", *ASKED), run(tmp_path, "2")
    other = run(tmp_path, "3", *ASKED, "teacher.temperature=0.5")
    with pytest.raises(UsageError, match="was collected by no provider's model either; set teacher.provider"):
        judge_teacher(TeacherConfig(), [paid, scripted], tmp_path)
    with pytest.raises(UsageError, match="were collected under different teacher"):
        judge_teacher(TeacherConfig(), [paid, other], tmp_path)
    (tmp_path / "collect-1" / "config.yaml").unlink()
    with pytest.raises(InputError, match="missing, so that it is not known how run .* asked claude-haiku-4-5"):
        judge_teacher(TeacherConfig(), [paid], tmp_path)
