"""Hierarchical training as a job like the others: its command, its ranks, stopping and resuming, its inputs."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.errors import InputError
from r2v.evaluation.audit.verify import verify_results
from r2v.hrl.tasks.task_states import STATES_FILE
from r2v.hrl.tasks.word_problems import word_problems
from r2v.pipeline.inputs import fingerprint_of
from r2v.pipeline.jobs import job
from r2v.policy.load import load_policy
from r2v.stages.train_hierarchical import REPORT, closing_lines
from r2v.storage import artifact as artifacts
from r2v.storage.artifact import Artifact
from tests.hrl.trainers import model_at
from tests.llm.engines.stub_server import stub_engine
from tests.llm.engines.test_servers import running
from tests.seeds.workspace import REPOSITORY
from tests.served_models import base_model
from tests.trust.kinds import unlisted
from tests.warm import run, start

PLACE = Path("outputs/hierarchical/desk_noisy")
SMALL = [
    "policy.model_name=toy",
    "policy.lora_r=4",
    "policy.device=cpu",
    "hierarchical.iterations=3",
    "hierarchical.episodes=4",
    "hierarchical.evaluate_every=2",
    "hierarchical.answer_tokens=4",
    "hierarchical.hint_tokens=4",
    "hierarchical.problems.count=12",
    "hierarchical.problems.held_out=4",
    "hierarchical.critic.updates=1",
    "hierarchical.critic.warmup=1",
    "hierarchical.critic.batch_size=8",
    "hierarchical.save_every=1",
    "hierarchical.lr=1e-3",
]


def command(*overrides: str) -> list[str]:
    return ["train_hierarchical", "--overrides", *SMALL, *overrides]


def trained(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return run(folder, *command(*overrides))


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / PLACE / REPORT).read_text())
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout in which it was trained, undisturbed."""
    folder = tmp_path_factory.mktemp("finished")
    done = trained(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_leaves_a_policy_a_report_and_its_metrics(finished: Path) -> None:
    made = artifacts.read((finished / PLACE).resolve())
    assert {REPORT, "metrics.jsonl", "final/adapter_model.safetensors"} <= set(made.files)
    assert closing_lines(report(finished))[0].startswith("4 held-out problems, right answers in %: answer 1 ")
    assert made.summary["weights_sha256"] == report(finished)["weights_sha256"]
    assert len((finished / PLACE / "metrics.jsonl").read_text().splitlines()) == 3
    policy = load(None, SMALL).policy
    acting = load_policy(policy, finished / PLACE / "final").model
    bare = load_policy(policy).model
    assert hasattr(acting, "peft_config") and not hasattr(bare, "peft_config")


def test_gsm8ks_configuration_trains_a_small_model_to_the_end(tmp_path: Path) -> None:
    """On a file of 20 problems; the lengths come from its solutions."""
    model_at(tmp_path / "small")
    rows = [{"question": one.text, "answer": f"By steps.\n#### {one.answer}"} for one in word_problems(20, 0, "train")]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        "policy.model_name=small",
        "policy.device=cpu",
        "hierarchical.problems.path=gsm8k.jsonl",
        "hierarchical.problems.held_out=4",
        "hierarchical.iterations=2",
        "hierarchical.episodes=4",
        "hierarchical.critic.warmup=1",
        "hierarchical.critic.batch_size=8",
        "hierarchical.critic.updates=1",
    )
    config = str(REPOSITORY / "configs/hierarchical/gsm8k.yaml")
    done = run(tmp_path, "train_hierarchical", "--config", config, "--overrides", *overrides)
    assert done.returncode == 0 and "answer_tokens=16" in done.stderr, done.stderr
    assert report(tmp_path)["iterations"] == 2 and report(tmp_path)["trained"]["problems"] == 4
    assert "answers were cut at hierarchical.answer_tokens=16" in done.stderr


SERVED = ("policy.lora_r=4", "policy.dtype=float32", "policy.device=cpu", "policy.engine=vllm")


ALONE, CHAIN = ("train_hierarchical",), ("run", "--overrides", "hierarchical.enabled=true")


@pytest.mark.parametrize(
    ("command", "changes", "said"),
    [
        *(
            (command, changes, said)
            for command in (ALONE, CHAIN)
            for changes, said in (
                ("policy.lora_r=0", "cannot serve this policy: whole weights"),
                ("policy.dtype=float64", "no engine computes in float64"),
                ("hierarchical.shards=fsdp", "under hierarchical.shards=fsdp no rank has adapters"),
            )
        ),
        (CHAIN, "hierarchical.start=bc", "the clone is merged into the base"),  # alone, it lacks a clone first of all
    ],
)
def test_an_engine_that_cannot_follow_is_refused_before_anything_is_begun(
    command: tuple[str, ...],
    changes: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (f"policy.model_name={model_at(tmp_path / 'small')}", *SERVED, changes)
    words = [*command, *(() if "--overrides" in command else ("--overrides",)), *settings]
    assert main(words) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("r2v: ")]
    assert line.startswith("r2v: policy.engine") and said in line and "engine=local" in line
    assert not (tmp_path / "outputs").exists()


def test_an_engine_draws_for_both_policies_and_is_ended_with_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for vLLM, whose draws are its own: its distribution is corrected to the policy's."""
    monkeypatch.chdir(tmp_path)
    venv = stub_engine(tmp_path / "engine")
    base = base_model(tmp_path / "base")
    settings = [f"policy.model_name={base}", *SERVED, f"policy.engine_venv={venv}", "policy.max_seq_len=128"]
    monkeypatch.setenv("VLLM_STUB_DIED", str(tmp_path / "died"))
    monkeypatch.setenv("VLLM_STUB_DIE_AT", "30")
    assert main([*command("policy.max_seq_len=128"), *settings]) == 0
    said = capsys.readouterr().err
    assert "engine selected: vllm=0.32.0 servers=1 serves=policies" in said and "server died, restarting" in said
    assert unlisted(PLACE) == [] and not (PLACE / "served").exists()
    lines = [json.loads(line) for line in (PLACE / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [0, 1, 2] and lines[-1]["actor/version"] > 0
    assert [words for _, words in running().values() if str(venv) in words] == []


def test_every_file_it_leaves_is_of_a_known_kind(finished: Path) -> None:
    assert unlisted(finished) == []


def test_the_actor_is_evaluated_by_its_folders_name(finished: Path) -> None:
    """Without the chain, and without the key of a teacher that no method uses."""

    def evaluated(method: str) -> subprocess.CompletedProcess[str]:
        asked = ("evaluate", "--methods", method, "--overrides")
        tasks = ("evaluation.conditions=[clean]", "evaluation.num_tasks=2")
        actor = (f"policy.model_name={PLACE / 'final'}", "policy.device=cpu")
        teacher = ("teacher.provider=openai", "teacher.model_name=gpt-5.2")
        return run(finished, *asked, *tasks, *actor, *teacher, env={"OPENAI_API_KEY": ""})

    done = evaluated("slm_base")
    assert done.returncode == 0 and "succeeded=0/4" in done.stderr, done.stderr
    assert verify_results(finished / "results" / "desk_noisy").num_episodes == 4
    refused = evaluated("llm_only")
    assert refused.returncode == 2 and "OPENAI_API_KEY is not set" in refused.stderr
    refused = evaluated("slm_only")
    assert refused.returncode == 3 and "needs router" in refused.stderr


def test_an_actor_is_trained_on_states_of_tasks_and_then_evaluated(tmp_path: Path) -> None:
    """The bundled student, on the desk: a hint between two actions in a state, scored by playing on. The untrained
    student knows none of the desk's actions, so every answer is wrong here."""
    overrides = (
        "policy.model_name=tiny",
        "policy.lora_r=0",
        "inference.max_steps=3",
        "inference.max_new_tokens=8",
        "hierarchical.problems.path=tasks",
        "hierarchical.problems.num_tasks=6",
        "hierarchical.iterations=2",
        "hierarchical.critic.draws=0",
    )
    done = trained(tmp_path, *overrides)
    assert done.returncode == 0 and "train_states=12 train_tasks=4 held_out_states=4" in done.stderr
    states = [json.loads(line) for line in (tmp_path / PLACE / STATES_FILE).read_text().splitlines()]
    assert len(states) == 18 and [len(one["actions"]) for one in states[:3]] == [0, 1, 2]
    sample = report(tmp_path)["samples"]["2"][0]
    assert sample["problem"].startswith("user: ") and len(sample["answers"]) == 2 and len(sample["hints"]) == 1
    asked = ("evaluate", "--methods", "slm_base", "--seeds", "1", "--overrides")
    tasks = ("evaluation.conditions=[clean]", "evaluation.num_tasks=2")
    own = (f"policy.model_name={PLACE / 'final'}", "policy.device=cpu", *overrides[2:4])
    played = run(tmp_path, *asked, *tasks, *own)
    assert played.returncode == 0 and "/2\n" in played.stderr, played.stderr
    assert unlisted(tmp_path) == []


def test_states_of_other_tasks_make_another_artifact() -> None:
    def key(*overrides: str) -> str:
        config = load(None, [*SMALL, "hierarchical.problems.path=tasks", *overrides])
        return fingerprint_of(config, job("hierarchical"), dict[str, Artifact]())

    assert len({key(), key("env.benchmark=chain"), key("data.condition=clean"), key("inference.max_steps=3")}) == 4
    assert key("rollout.batch_size=7") == key()


def test_what_is_up_to_date_is_not_trained_again(finished: Path) -> None:
    done = trained(finished, "hierarchical.micro_batch=2", "hierarchical.enabled=true")
    assert done.returncode == 0 and "up to date" in done.stderr, done.stderr


def test_a_stopped_job_goes_on_to_the_same_bits(finished: Path, tmp_path: Path) -> None:
    process = start(tmp_path, *command())
    deadline = time.monotonic() + 120
    while not (tmp_path / PLACE / "checkpoint-latest").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert process.returncode == 75 and "the same command continues" in said, said
    assert trained(tmp_path).returncode == 0
    assert report(tmp_path) == report(finished)


def test_two_ranks_train_what_one_does(finished: Path, tmp_path: Path) -> None:
    done = trained(tmp_path, "training.ranks=2")
    assert done.returncode == 0, done.stderr
    ours, theirs = report(tmp_path), report(finished)
    assert (ours["untrained"], ours["trained"]) == (theirs["untrained"], theirs["trained"])


def test_the_problems_are_what_they_say_not_where_they_are(tmp_path: Path) -> None:
    def key(path: Path) -> str:
        config = load(None, [*SMALL, f"hierarchical.problems.path={path}"])
        return fingerprint_of(config, job("hierarchical"), dict[str, Artifact]())

    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"problem": "1 and 1", "answer": "2"}\n')
    two.write_bytes(one.read_bytes())
    before = key(one)
    assert key(two) == before
    two.write_text('{"problem": "1 and 1", "answer": "3"}\n')
    assert key(two) != before
    with pytest.raises(InputError, match="no such file"):
        key(tmp_path / "three.jsonl")


@pytest.mark.parametrize(
    ("overrides", "code", "told"),
    [
        (["hierarchical.start=bc"], 3, "needs bc"),
        (["hierarchical.placement=split"], 2, "takes 2 GPUs"),
        (["hierarchical.episodes=50"], 2, "there are 12 problems to train on"),
        (["hierarchical.problems.path=tasks", "hierarchical.problems.checker=numeric"], 2, "must be auto"),
        (["hierarchical.rewards=[-1,1]"], 2, "improvement is what the guidance is rewarded for"),
    ],
)
def test_what_cannot_be_is_one_line(overrides: list[str], code: int, told: str, tmp_path: Path) -> None:
    done = trained(tmp_path, *overrides)
    assert done.returncode == code and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_malformed_problem_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"problem": "1 and 1", "answer": "2"}\n{"problem": 3\n')
    done = trained(tmp_path, "hierarchical.problems.path=problems.jsonl")
    assert done.returncode == 3 and "problems.jsonl:2" in done.stderr, done.stderr
