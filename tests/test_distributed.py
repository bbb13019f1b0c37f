"""Ranks: their start, their stop, and the failure of the command when one of them fails.

The ranks here are real processes; most do no training, so that they start at once (`tests/policy/test_ranks.py` trains
on them).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from r2v import config as c
from r2v import distributed
from r2v.errors import EnvironmentFault, UsageError
from r2v.stages.train_policy import BC, training_is_sharded
from r2v.storage.record import Recorded, describe
from tests import warm

RANK = """
import os, signal, sys, time
from pathlib import Path
from r2v.distributed import rank, ranks, run_rank
from r2v.errors import UsageError
folder = Path({folder!r})
def act():
    (folder / f"pid-{{rank()}}").write_text(str(os.getpid()))
    while len(list(folder.glob("pid-*"))) < ranks():
        time.sleep(0.01)
    {act}
sys.exit(run_rank(act))
"""


def code(folder: Path, act: str) -> tuple[str, str]:
    return "-c", RANK.format(folder=str(folder), act=act)


def pids(folder: Path) -> list[int]:
    return [int(text) for path in sorted(folder.glob("pid-*")) if (text := path.read_text())]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_every_rank_runs_once_and_knows_which_it_is(tmp_path: Path) -> None:
    distributed.launch(3, *code(tmp_path, '(folder / f"{rank()} of {ranks()}").touch()'))
    assert {path.name for path in tmp_path.glob("* of *")} == {"0 of 3", "1 of 3", "2 of 3"}
    assert (distributed.rank(), distributed.ranks()) == (0, 1)


def test_a_plain_process_is_no_rank_whatever_the_site_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (distributed.rank(), distributed.ranks()) == (0, 1)


FOREVER = "time.sleep(600)"


@pytest.mark.parametrize(
    ("death", "error", "message", "kind"),
    [
        ("raise UsageError('no such thing')", UsageError, "no such thing", "usage"),
        ("1 / 0", Recorded, "ZeroDivisionError: division by zero", "bug"),
        ("os.kill(os.getpid(), signal.SIGKILL)", EnvironmentFault, "rank 1 was killed from outside", "host_oom"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            EnvironmentFault,
            r"rank 1 crashed \(SIGSEGV\) in a library",
            "killed",
        ),
    ],
)
def test_a_rank_that_dies_ends_all_and_the_command_with_its_error(
    death: str, error: type[Exception], message: str, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as failed:
        distributed.launch(2, *code(tmp_path, f"if rank() == 1: {death}\n    {FOREVER}"))
    assert not any(map(running, pids(tmp_path)))
    assert describe(failed.value)["kind"] == kind
    if error is Recorded:
        assert "in act" in "".join(failed.value.__notes__), "the rank's own traceback"


def test_signals_mean_afterwards_what_they_meant_before(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    distributed.launch(1, *code(tmp_path, "pass"))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


PARENT = """
import sys
from r2v.distributed import launch
from r2v.errors import R2VError
try:
    launch(2, *sys.argv[1:])
except R2VError as error:
    print(type(error).__name__, error)
"""


@contextmanager
def parent(folder: Path, act: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a command that launches two ranks; it is gone afterwards, however the test ends."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *code(folder, act)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_reaches_every_rank_and_is_an_interruption(number: signal.Signals, tmp_path: Path) -> None:
    with parent(tmp_path, FOREVER) as process:
        until(lambda: len(pids(tmp_path)) == 2, "the ranks start")
        for pid in [] if number == signal.SIGTERM else pids(tmp_path):
            os.kill(
                pid, number
            )  # a closing terminal signals every process of it: the ranks leave in order all the same
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert output.startswith("Interrupted stopped") and not any(map(running, pids(tmp_path)))


def test_a_rank_that_cannot_hear_is_ended_soon_after_another_has_left(tmp_path: Path) -> None:
    """Such a rank waits, inside a collective, for the rank that left."""
    deaf = "if rank() == 0: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    with parent(tmp_path, f"{deaf}\n    (folder / f'ready-{{rank()}}').touch()\n    {FOREVER}") as process:
        until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "the ranks start")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=90)
    assert output.startswith("Interrupted stopped") and not any(map(running, pids(tmp_path)))


def test_a_request_before_the_ranks_are_there_is_not_lost(tmp_path: Path) -> None:
    with parent(tmp_path, FOREVER) as process:
        until(lambda: bool(list(tmp_path.glob("r2v-ranks-*/lock"))), "the launch begins")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert output.startswith("Interrupted stopped") and not any(map(running, pids(tmp_path)))


def test_no_rank_outlives_a_killed_command(tmp_path: Path) -> None:
    """The lease dies with the command: the next owner must not find ranks still writing."""
    with parent(tmp_path, FOREVER) as process:
        until(lambda: len(pids(tmp_path)) == 2, "the ranks start")
        process.send_signal(signal.SIGKILL)
        until(lambda: not any(map(running, pids(tmp_path))), "the ranks end")


def test_a_closing_terminal_is_noted_however_often_it_says_so() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with distributed.stopping() as stop_requested:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert stop_requested()
    assert signal.getsignal(signal.SIGHUP) == before


def test_a_first_signal_is_noted_and_a_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with distributed.stopping() as stop_requested:
        assert not stop_requested()
        signal.raise_signal(signal.SIGTERM)
        assert stop_requested() and stop_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize(
    ("batch", "steps", "count", "micro"),
    [
        (4, 8, 2, (4, 4)),
        (16, 1, 1, (16, 1)),
        (16, 1, 2, (8, 1)),
        (16, 1, 16, (1, 1)),
        (2, 8, 4, (2, 2)),
        (12, 3, 4, (9, 1)),
        (3, 4, 2, (3, 2)),
        (6, 5, 3, (5, 2)),
    ],
)
def test_an_update_has_as_many_rows_for_any_number_of_ranks(
    batch: int, steps: int, count: int, micro: tuple[int, int]
) -> None:
    assert distributed.cut(batch, steps, count) == micro
    assert micro[0] * micro[1] * count == batch * steps and micro[0] <= batch


def test_ranks_that_cannot_share_alike_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size=5 x gradient_accumulation_steps=1: 2 ranks cannot share 5 rows"):
        distributed.cut(5, 1, 2)


def test_one_rank_on_a_cpu_and_as_many_as_asked_for() -> None:
    assert distributed.ranks_for(None, "cpu") == 1 and distributed.ranks_for(3, "cpu") == 3
    assert distributed.ranks_for(None, "cuda:1") == 1
    with pytest.raises(UsageError, match="training.ranks=2: policy.device=cuda:1 gives 1 GPUs"):
        distributed.ranks_for(2, "cuda:1")


def test_ranks_and_sharding_leave_the_fingerprint_alone() -> None:
    overrides = ["training.ranks=4", "training.zero=3"]
    assert c.identity(BC.sections(c.load(None, overrides))) == c.identity(BC.sections(c.load(None, [])))
    phase = BC.sections(c.load(None, overrides)).phase
    assert (phase.ranks, phase.zero, phase.deepspeed) == (4, 3, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.zero=1"], "training.zero must be 0, 2 or 3, got 1"),
        (["training.ranks=0"], "training.ranks must be above 0 and at most 1e12, got 0"),
        (["training.zero=2", "training.deepspeed=d.json"], "training.deepspeed replaces training.zero"),
        (["training.zero=2", "training.fsdp=true"], "training.fsdp replaces training.zero and training.deepspeed"),
    ],
)
def test_what_cannot_be_sharded_is_refused_before_anything_runs(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        c.load(None, words)


def test_fsdp_that_cannot_be_had_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU and with one rank: `_trained` checks before it loads. Over 4-bit weights FSDP is available."""
    config = c.load(None, ["training.fsdp=true", "policy.lora_r=4", "policy.model_name=org/model"])
    assert BC.sections(config).phase.fsdp and c.identity(BC.sections(config)) == c.identity(
        BC.sections(c.load(None, ["policy.lora_r=4", "policy.model_name=org/model"]))
    )
    phase, policy = BC.sections(config).phase, config.policy
    with pytest.raises(UsageError, match="training.fsdp=true: fewer than two GPUs are used here"):
        training_is_sharded(phase, policy, 2)
    monkeypatch.setattr(distributed, "visible_gpus", lambda: 2)
    with pytest.raises(UsageError, match="fewer than two GPUs"):
        training_is_sharded(phase, replace(policy, device="cpu"), 2)
    with pytest.raises(UsageError, match="fewer than two GPUs"):
        training_is_sharded(phase, policy, 1)
    assert training_is_sharded(phase, policy, 2)
    assert training_is_sharded(phase, replace(policy, load_in_4bit=True), 2)


def test_sharding_without_a_gpu_or_without_deepspeed_is_one_line(tmp_path: Path) -> None:
    script = "from r2v.distributed import require_deepspeed; require_deepspeed('training.zero=2', 'auto')"
    hidden = f"import sys; sys.modules['deepspeed'] = None; {script}"
    for source, message in (
        (script, "training.zero=2: no GPU is visible here"),
        (hidden, "training.zero=2: deepspeed is not installed; pip install 'r2v[gpu]'"),
    ):
        done = subprocess.run(
            [warm.python(), "-c", source],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert f"UsageError: {message}" in done.stderr.splitlines()[-1]
