"""The runner of a stage, as a process beside the test: the signals it passes on, its records and its exit codes.

Slurm is the fake of tests/slurm/fake; the stages' bodies are those of tests/slurm/drill_stage.py, the rest is real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.utils import FailedJobError

from r2v.pipeline.inputs import place_of
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import config_sha
from r2v.slurm.job.command_line import config_of, made_by, missing_output, places_of
from r2v.storage.artifact import publish
from tests import warm
from tests.slurm.faked import FAKE_PATH
from tests.trust import MICRO

ROOT = Path(__file__).resolve().parents[3]
CONFIG = "env: {options: {num_tasks: 40, num_heldout: 8}}\ndata: {num_episodes: 4, seeds: [1]}\n"
COMMAND_TIMEOUT = 60.0


class Folder:
    """A checkout with one collected run, in which a Slurm job with the id 42 is started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "outputs/.chains/desk_noisy/jobs/42"

    def environment(self, **values: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "R2V"))}
        return {
            **kept,
            "PATH": f"{FAKE_PATH}:{kept['PATH']}",
            "SLURM_CONF": str(self.path / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'tests/slurm/fake_stages'}:{ROOT}",
            "SLURM_JOB_ID": "42",
            **values,
        }

    def start(self, *words: str, program: str = "", **values: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [warm.login_python(), *(["-c", program] if program else ["-m", "r2v.slurm.job.runner"]), *words],
            cwd=self.path,
            text=True,
            env=self.environment(**values),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *words: str, **values: str) -> tuple[int, str]:
        process = self.start(*words, **values)
        said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
        return process.returncode, said

    def behave(self, **jobs: dict[str, Any]) -> None:
        (self.path / "drill.json").write_text(json.dumps(jobs))

    def told(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.record / f"{name}.json").read_text())
        return found

    def steps(self) -> int:
        """Return the stage's current step; 0 before it has a checkpoint."""
        path = self.record / "events.jsonl"
        checkpoints = list((self.path / "outputs/.artifacts").glob("perturb-*/checkpoint-latest/state.json"))
        return json.loads(checkpoints[0].read_text())["step"] if path.exists() and checkpoints else 0

    @property
    def calls(self) -> list[list[str]]:
        log = self.path / "calls.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collected")
    (path / "configs/desk").mkdir(parents=True)
    (path / "configs/desk/noisy.yaml").write_text(CONFIG)
    code, said = Folder(path).run("collect", "desk")
    assert code == 0, said
    return path


@pytest.fixture
def folder(collected: Path, tmp_path: Path) -> Iterator[Folder]:
    shutil.copytree(collected, tmp_path / "checkout", symlinks=True)
    shutil.rmtree(tmp_path / "checkout/outputs/.chains")
    made = Folder(tmp_path / "checkout")
    made.behave()
    yield made


def wait(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + COMMAND_TIMEOUT
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children_of(process: subprocess.Popen[str]) -> list[int]:
    runner = warm.fork_of(process)
    return [int(pid) for pid in Path(f"/proc/{runner}/task/{runner}/children").read_text().split()]


def child_of(process: subprocess.Popen[str]) -> int:
    return children_of(process)[0]


def test_a_stage_that_ends_well_leaves_its_start_and_its_end(collected: Path) -> None:
    folder = Folder(collected)
    start, exit_ = folder.told("start"), folder.told("exit")
    assert (start["job"], start["restart"], start["command"][0]) == ("collect", 0, "collect")
    assert (exit_["rc"], exit_["signal"], exit_["kind"], exit_["restart"]) == (0, 0, None, 0)
    assert exit_["peak_rss_bytes"] > 10 << 20 and not (folder.record / "error.json").exists()


@pytest.mark.parametrize(
    ("words", "behaviour", "code", "kind", "line"),
    [
        (["perturb", "desk"], {"crash": "the answer is 43"}, 1, "bug", "ValueError: the answer is 43"),
        (["perturb", "desk"], {"usage": "no such thing"}, 2, "usage", "no such thing"),
        (["train_router", "desk"], {}, 3, "input", "needs router_features"),
        (["perturb", "desk"], {"cuda_oom_above": 0}, 1, "cuda_oom", "CUDA out of memory"),
        (["perturb", "desk"], {"shards": 2, "kill_shard": 0}, 1, "host_oom", "1 of 2 shards"),
    ],
)
def test_a_failure_is_recorded_as_what_it_is(
    words: list[str], behaviour: dict[str, Any], code: int, kind: str, line: str, folder: Folder
) -> None:
    folder.behave(perturb=behaviour)
    found, said = folder.run(*words)
    exit_ = folder.told("exit")
    assert (found, exit_["rc"], exit_["kind"]) == (code, code, kind), said
    assert line in exit_["line"]


def test_a_whole_pipeline_that_ends_with_0_is_not_believed_without_its_last_artifact(folder: Folder) -> None:
    others = ("bc", "verifier", "candidates", "preference", "router_features", "router", "evaluate", "ablations")
    folder.behave(perturb={"vanish": True})
    code, said = folder.run("run", "desk", "--from", "perturb", "--without", *others)
    exit_ = folder.told("exit")
    assert (code, exit_["rc"], exit_["kind"]) == (1, 1, "bug"), said
    assert "ended with 0, and yet" in exit_["line"] and "data/trajectories/desk_noisy" in exit_["line"]


def test_hierarchical_training_that_ends_with_0_is_not_believed_without_its_artifact(folder: Folder) -> None:
    folder.behave(hierarchical={"vanish": True})
    code, said = folder.run("train_hierarchical", "desk")
    exit_ = folder.told("exit")
    assert (code, exit_["kind"]) == (1, "bug"), said
    assert "ended with 0, and yet" in exit_["line"] and "outputs/hierarchical" in exit_["line"]


def test_words_that_cannot_be_end_before_anything_is_written(folder: Folder) -> None:
    for words in (["perturb", "nowhere"], ["pertrub", "desk"], ["perturb", "desk", "--overrides", "training.lrr=1"]):
        code, said = folder.run(*words)
        assert code == 2 and said.count("\n") == 1 and said.startswith("r2v: "), said
    assert not folder.record.exists()


def test_the_warning_of_the_time_limit_becomes_a_checkpoint_and_a_requeue(folder: Folder) -> None:
    folder.behave(perturb={"steps": 400, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3)
    process.send_signal(signal.SIGUSR2)
    said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
    assert process.returncode == 75, said
    assert ["scontrol", "requeue", "42"] in folder.calls
    assert folder.told("exit")["kind"] == folder.told("error")["kind"] == "interrupted"
    before = folder.steps()
    folder.behave(perturb={"steps": before + 1})
    code, said = folder.run("perturb", "desk", SLURM_RESTART_COUNT="1")
    assert code == 0 and f"goes on from step {before}" in said
    assert (folder.told("start")["restart"], folder.told("exit")["restart"]) == (1, 1)
    assert not (folder.record / "error.json").exists(), "left by the start before"


def test_a_slurm_that_is_silent_keeps_a_job_from_no_signal(folder: Folder) -> None:
    """The reconcile with which a job begins goes on asking for two minutes."""
    sha = config_sha("seed: 0\n")
    chains.write(folder.path, chains.Chain(name="desk_noisy", benchmark="desk", condition="noisy", config_sha=sha))
    (folder.path / "outputs/.chains/desk_noisy/config.yaml").write_text("seed: 0\n")
    (folder.path / "squeue.fail").write_text("slurm_load_jobs error: Socket timed out on send/recv operation")
    folder.behave(perturb={"steps": 4000, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3 and ["squeue"] in [call[:1] for call in folder.calls])
    _, looking = children_of(process)
    try:
        process.send_signal(signal.SIGUSR2)
        assert process.wait(timeout=COMMAND_TIMEOUT) == 75
        assert ["scontrol", "requeue", "42"] in folder.calls
    finally:
        os.kill(looking, signal.SIGKILL)
        process.communicate()


def test_a_start_without_progress_does_not_put_itself_back(folder: Folder) -> None:
    folder.behave(perturb={"hold": "never"})
    process = folder.start("perturb", "desk")
    wait((folder.record / "events.jsonl").exists)
    process.send_signal(signal.SIGUSR2)
    said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
    assert process.returncode == 75 and "no progress" in said
    assert not [call for call in folder.calls if call[:2] == ["scontrol", "requeue"]]


def test_a_terminal_that_closes_on_a_stage_without_slurm_stops_it_at_a_checkpoint(folder: Folder) -> None:
    folder.behave(perturb={"steps": 4000, "seconds": 0.02})
    process = folder.start("perturb", "desk", SLURM_JOB_ID="")
    checkpoints = folder.path / "outputs/.artifacts"
    wait(lambda: list(checkpoints.glob("perturb-*/checkpoint-latest/state.json")))
    for pid in (child_of(process), warm.fork_of(process)):
        os.kill(pid, signal.SIGHUP)
    said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
    assert process.returncode == 75, said


def test_where_requeue_is_not_allowed_it_ends_with_75(folder: Folder) -> None:
    (folder.path / "scontrol.fail").write_text("Job requeue has been disabled by the system administrator")
    folder.behave(perturb={"steps": 400, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 75 and folder.told("exit")["rc"] == 75


def test_what_somebody_else_is_making_is_waited_for_in_the_queue(folder: Folder) -> None:
    """The job is queued behind the Slurm job that makes the artifact; without one it waits for a while, without a GPU
    and without an end record."""
    folder.behave(perturb={"hold": "never"})
    for holder, told in (("7", "dependency=afterany:7"), ("", "starttime=now+600")):
        making = folder.start("perturb", "desk", SLURM_JOB_ID=holder)
        wait(lambda: list((folder.path / "outputs/.artifacts").glob("perturb-*.lease")))
        code, said = folder.run("perturb", "desk")
        assert code == 6 and "is held by pid" in said and "r2v job requeued behind a lease" in said
        assert folder.calls[-2:] == [["scontrol", "requeue", "42"], ["scontrol", "update", "jobid=42", told]]
        assert not (folder.record / "exit.json").exists()
        making.terminate()
        making.communicate(timeout=COMMAND_TIMEOUT)


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_a_SIGTERM_that_slurm_sends_to_everybody_is_not_sent_twice(apart: float, folder: Folder) -> None:
    """Slurm sends a SIGCONT first, and the stage has had its own SIGTERM."""
    folder.behave(perturb={"steps": 120, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3)
    os.kill(warm.fork_of(process), signal.SIGCONT)
    time.sleep(apart)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=COMMAND_TIMEOUT)[0]
    assert process.returncode == 0, said
    assert "asks its stage" not in said


def test_a_USR2_to_every_process_leaves_the_stage_alive_to_checkpoint(folder: Folder) -> None:
    folder.behave(perturb={"steps": 400, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3)
    os.kill(child_of(process), signal.SIGUSR2)
    process.send_signal(signal.SIGUSR2)
    process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 75 and folder.told("error")["kind"] == "interrupted"


def test_a_stage_whose_runner_is_killed_stops_at_a_checkpoint_and_frees_its_lease(folder: Folder) -> None:
    folder.behave(perturb={"steps": 4000, "seconds": 0.02})
    process = folder.start("perturb", "desk")
    wait(lambda: folder.steps() >= 3)
    process.kill()
    process.communicate(timeout=COMMAND_TIMEOUT)
    wait(lambda: (folder.record / "error.json").exists())
    assert folder.told("error")["kind"] == "interrupted"
    wait(lambda: not list((folder.path / "outputs/.artifacts").glob("perturb-*.lease")))


@pytest.mark.parametrize(("limit", "kind"), [("100000", "killed"), ("1", "host_oom")])
def test_a_stage_killed_under_a_runner_that_lives(limit: str, kind: str, folder: Folder) -> None:
    folder.behave(perturb={"hold": "never"})
    process = folder.start("perturb", "desk", SLURM_MEM_PER_NODE=limit)
    wait((folder.record / "events.jsonl").exists)
    os.kill(child_of(process), signal.SIGKILL)
    process.communicate(timeout=COMMAND_TIMEOUT)
    exit_ = folder.told("exit")
    assert (process.returncode, exit_["rc"], exit_["signal"], exit_["kind"]) == (137, 137, 9, kind)


def test_submitits_job_answers_how_it_ended(folder: Folder) -> None:
    (scripts := folder.path / "outputs/.chains/desk_noisy/submitit/42").mkdir(parents=True)
    job: submitit.SlurmJob[dict[str, Any]] = submitit.SlurmJob(scripts.parent / "%j", "42")
    assert folder.run("perturb", "desk")[0] == 0
    assert job.done() and job.result()["rc"] == 0 and job.result().items() <= folder.told("exit").items()
    folder.behave(perturb={"crash": "KeyError: 17"})
    assert folder.run("perturb", "desk", "--force")[0] != 0
    with pytest.raises(FailedJobError, match="KeyError: 17"):
        job.result()


def test_what_is_done_is_not_paid_for_again(folder: Folder) -> None:
    """A node that fails just after its stage has ended starts the job a second time."""
    assert folder.run("collect", "desk")[0] == 0
    runs = sorted((folder.path / "data/runs").iterdir())
    code, said = folder.run("collect", "desk", SLURM_RESTART_COUNT="1")
    assert code == 0 and "was done before" in said
    assert sorted((folder.path / "data/runs").iterdir()) == runs


def test_without_slurm_it_runs_and_records_nothing(folder: Folder) -> None:
    assert folder.run("perturb", "desk", SLURM_JOB_ID="")[0] == 0
    assert not folder.record.parent.exists()


def test_code_that_changed_since_the_submission_is_told(folder: Folder) -> None:
    chains.write(
        folder.path,
        chains.Chain(name="desk_noisy", benchmark="desk", condition="noisy", config_sha="ab", commit="0" * 40),
    )
    code, said = folder.run("perturb", "desk")
    assert code == 0 and "runs another commit than submitted: job=42 submitted=000000000000" in said


def test_what_was_edited_after_a_script_was_given_to_sbatch_by_hand_is_named(folder: Folder) -> None:
    submitted = datetime.now().replace(microsecond=0)
    row = {"JobID": "42", "Name": "perturb", "State": "RUNNING", "Reason": "None", "Dependency": "(null)"}
    row |= {"Comment": "(null)", "SubmitTime": submitted.isoformat()}
    (folder.path / "jobs.json").write_text(json.dumps([row]))
    config = folder.path / "configs/desk/noisy.yaml"
    for edited, told in ((submitted.timestamp(), False), (submitted.timestamp() + 60, True)):
        os.utime(config, (edited, edited))
        code, said = folder.run("perturb", "desk")
        named = "runs files edited since its submission (r2v run_all pins code): job=42 files=configs/desk/noisy.yaml"
        assert code == 0 and (named in said) == told, said


def test_an_exit_code_of_0_is_not_believed_without_the_artifact(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path)
    words = ["perturb", "--config", "configs/desk/noisy.yaml"]
    assert "no artifact.json" in str(missing_output(words))
    assert folder.run("perturb", "desk")[0] == 0
    assert missing_output(words) is None
    place = place_of(config_of(words), "perturb")
    other = folder.path / "outputs/.artifacts/perturb-0123456789abcdef"  # an artifact in progress under the same name
    other.mkdir()
    own = place.resolve()
    publish(place, other)
    assert missing_output(words) is None
    publish(place, own)
    (place / "value.txt").unlink()
    assert "value.txt is damaged: it is gone" in str(missing_output(words))
    assert missing_output([*words, "--output", "elsewhere"]) is None
    assert missing_output(["collect", "--config", "configs/desk/noisy.yaml"]) is None
    assert "no done run" in str(missing_output(["collect", "--overrides", "env.benchmark=chain"]))


def test_which_places_a_command_fills() -> None:
    assert made_by(["train_policy", "--stage", "bc", "--config", str(MICRO)]) == ("bc",)
    for words in (["train_policy"], ["train_policy", "--stage", "all"]):
        assert made_by(words) == ("bc", "candidates", "preference")
    assert made_by(["evaluate"]) == ("evaluate",) and made_by(["train_hierarchical"]) == ("hierarchical",)
    assert made_by(["run", "--from", "router", "--without", "ablations"]) == ("router", "evaluate")
    named = places_of(["perturb", "--overrides", "prefix=mrp", "seed=3", "--force"])
    assert named.name == "mrp"
