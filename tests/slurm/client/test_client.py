"""The output of Slurm's commands is read whatever version printed it; the fake commands of tests/slurm/fake answer.

The texts marked (doc) follow the documentation of versions that are not installed on this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.errors import UsageError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, ChainJob
from r2v.slurm.client import client
from r2v.slurm.client.command import (
    PATIENCE_VARIABLE,
    NoAnswer,
    NoSlurm,
    SlurmRefused,
    ThisMachine,
    other_cluster,
    patience,
    present,
    require,
    through,
)
from r2v.slurm.client.sacct import FIELDS, memory, read_accounting, state_of
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

TEXT = """\
59|FAILED|0:9|0:0|10|billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,mem=250M,node=1|250M||g1|2026-01-01T00:00:00|2026-01-01T00:00:01|2026-01-01T00:00:11
59.batch|CANCELLED|0:9||10|cpu=1,mem=250M,node=1||262401K|g1|2026-01-01T00:00:01|2026-01-01T00:00:01|2026-01-01T00:00:11
59.0|COMPLETED|0:0||9|cpu=1,mem=250M,node=1||1200K|g1|2026-01-01T00:00:01|2026-01-01T00:00:01|2026-01-01T00:00:11
60|PREEMPTED|0:0|0:0|100|billing=1,gres/gpu:h100=4,node=1|4Gc||g[1-2]|2026-01-01T00:00:00|2026-01-01T00:00:01|2026-01-01T00:01:41
60.batch|CANCELLED|0:15||100|||5M|g1|||
60|COMPLETED|0:0|6:0|50|billing=1,gres/gpu:h100=4,node=1|4Gc||g2|2026-01-01T00:00:00|2026-01-01T00:02:01|2026-01-01T00:02:51
60.batch|COMPLETED|0:0||50|||7M|g2|||
61|CANCELLED by 1000|0:0|0:0|0||200M||None assigned|2026-01-01T00:00:00|Unknown|Unknown
"""


def test_lives_of_a_job_with_the_highest_memory_of_their_steps() -> None:
    jobs = read_accounting(TEXT)
    assert [len(jobs[one]) for one in ("59", "60", "61")] == [1, 2, 1]
    killed = jobs["59"][0]
    assert (killed.state, killed.exit_code, killed.signal, killed.max_rss) == ("FAILED", 0, 9, 262401 << 10)
    assert (killed.gpus, killed.requested, killed.nodes) == (2, 250 << 20, "g1")
    assert killed.gpu_hours == pytest.approx(20 / 3600)
    first, last = jobs["60"]
    assert (first.state, first.max_rss, last.max_rss, last.derived) == ("PREEMPTED", 5 << 20, 7 << 20, 6)
    assert first.gpus == 4, "counted by type where the site keeps no generic count"
    gone = jobs["61"][0]
    assert (gone.state, gone.by, gone.nodes) == ("CANCELLED", "1000", "")


def test_a_line_that_is_none_of_ours_is_passed_over() -> None:
    assert read_accounting("") == {} == read_accounting("slurm_load: something\n\n")
    assert read_accounting("7.batch|COMPLETED|0:0") == {}


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 0", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("CANCELLED+", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("", ""),
    ],
)
def test_states_lose_what_is_cut_or_added(word: str, state: str) -> None:
    assert state_of(word) == state


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200M", 200 << 20),
        ("161826K", 161826 << 10),
        ("4Gn", 4 << 30),
        ("4Gc", 4 << 30),
        ("1.50G", 3 << 29),
        ("64", 64 << 20),
        ("2T", 2 << 40),
        ("64GB", 64 << 30),
        ("", None),
        ("0", 0),
        ("all", None),
    ],
)
def test_memory_in_all_its_spellings(text: str, size: int | None) -> None:
    assert memory(text) == size


def test_accounting_that_is_down_is_an_answer(faked: Faked) -> None:
    faked.down("sacct", "sacct: error: slurm_persist_conn_open_without_init: Connection refused")
    told = client.accounting(["1"])
    assert told.jobs == {} and told.down is not None and "Connection refused" in told.down


def test_nothing_is_asked_about_no_job(faked: Faked) -> None:
    assert client.accounting([]) == client.Accounting() and faked.calls == []


def test_a_field_that_this_version_lacks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sacct = tmp_path / "sacct"
    sacct.write_text(
        '#!/bin/sh\ncase "$*" in *DerivedExitCode*) echo \'sacct: error: Invalid field requested: '
        '"DerivedExitCode"\' >&2; exit 1;; esac\necho "7|FAILED|3:0|12|gres/gpu=1|1G||g1|||"\n'
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = client.accounting(["7"])
    assert told.down is None and (told.jobs["7"][0].exit_code, told.jobs["7"][0].gpus) == (3, 1)
    assert "DerivedExitCode" in FIELDS


def test_no_slurm_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert not present()
    for ask in (require, client.queue):
        with pytest.raises(NoSlurm, match="not on PATH; .*--here") as caught:
            ask()
        assert caught.value.exit_code == 5
    assert client.accounting(["1"]).down is not None


def test_a_refusal_is_slurms_own_words(faked: Faked) -> None:
    faked.down("sbatch", "sbatch: error: Batch job submission failed: Invalid qos specification")
    with pytest.raises(SlurmRefused, match="^sbatch: Batch job submission failed: Invalid qos specification$"):
        client.sbatch([], "#!/bin/bash\ntrue\n")


def test_jobs_of_another_checkout_with_a_chain_of_the_same_name_are_not_ours(faked: Faked) -> None:
    link = faked.root.parent / f"{faked.root.name}-by-another-path"
    link.symlink_to(faked.root)
    for at, place in enumerate((faked.root, link, faked.root / "logs", "/nowhere", "(null)")):
        faked.queued(str(100 + at), Comment="r2v:desk_noisy/bc/ab", WorkDir=str(place))
    faked.queued("200", Comment="r2v:desk_noisy_2/bc/ab", WorkDir=str(faked.root))
    faked.answer()
    assert [row.id for row in client.queue("desk_noisy", faked.root)] == ["100", "101", "104"]
    assert len(client.queue()) == 6


def test_jobs_are_ordered_by_number_and_task() -> None:
    ids = ["123_10", "1234", "123_4", "123_[11-15%2]", "99", "(null)"]
    assert sorted(ids, key=client.job_number) == ["(null)", "99", "123_[11-15%2]", "123_4", "123_10", "1234"]


TIMED_OUT = "error: Socket timed out on send/recv operation"


class Flaky(ThisMachine):
    """Run the fake commands; calls of `command` fail as `fails` lists them; only sleeps take time.

    "lost": the call is carried out and its answer is lost.
    """

    def __init__(self, command: str, *fails: str) -> None:
        self.command, self.fails, self.seconds = command, list(fails), 0.0

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        if command[0] != self.command or not self.fails or not (fails := self.fails.pop(0)):
            return super().run(command, stdin, environment)
        if fails == "lost":
            super().run(command, stdin, environment)
        if fails == "hangs":
            raise subprocess.TimeoutExpired(list(command), 60)
        words = TIMED_OUT if fails == "lost" else fails
        return subprocess.CompletedProcess(list(command), 1, "", f"{self.command}: {words}")

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def patient(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faked]:
    monkeypatch.setenv(PATIENCE_VARIABLE, "60")
    faked.answer()
    yield faked


COMMENT = "--comment=r2v:desk_noisy/bc/abc1"


@pytest.mark.parametrize("fails", [TIMED_OUT, "hangs", "Unable to contact slurm controller (connect failure)"])
def test_a_question_that_nobody_answers_is_asked_again_with_growing_pauses(fails: str, patient: Faked) -> None:
    patient.queued("7")
    patient.answer()
    flaky = Flaky("squeue", fails, fails, fails)
    with through(flaky):
        assert [row.id for row in client.queue()] == ["7"]
    assert 2.5 < flaky.seconds < 4.5, "0.5, 1 and 2 seconds, each a quarter more or less"
    with through(Flaky("squeue", *[fails] * 50)), pytest.raises(NoAnswer):
        client.queue()


def test_an_update_is_said_again_and_a_refusal_is_not(patient: Faked) -> None:
    with through(Flaky("scontrol", TIMED_OUT)):
        assert client.update("7", comment="x")
    assert patient.calls.count("scontrol") == 1
    with through(Flaky("scontrol", "Job is no longer pending execution")):
        assert not client.update("7", comment="x")


@pytest.mark.parametrize(("fails", "reached"), [("lost", True), (TIMED_OUT, False), ("hangs", False)])
def test_a_submission_whose_answer_was_lost_is_looked_for_and_never_repeated_blindly(
    fails: str, reached: bool, patient: Faked
) -> None:
    patient.queued("90", Comment=COMMENT.partition("=")[2])
    patient.answer()
    flaky = Flaky("sbatch", fails)
    with through(flaky):
        assert client.sbatch([COMMENT], "#!/bin/bash\ntrue\n", recorded={"90"}) == "101"
    assert patient.calls.count("sbatch") == 1 and (flaky.seconds > 10) is not reached
    assert [row.id for row in client.queue()] == ["90", "101"]


def test_a_submission_that_reached_nobody_is_made_again_at_once(patient: Faked) -> None:
    flaky = Flaky("sbatch", "Unable to contact slurm controller (connect failure)")
    with through(flaky):
        assert client.sbatch([COMMENT], "#!/bin/bash\ntrue\n") == "101"
    assert flaky.seconds < 2
    with through(Flaky("sbatch", "lost")), pytest.raises(NoAnswer):
        client.sbatch([], "#!/bin/bash\ntrue\n")  # without a comment a submitted job cannot be recognized


def test_what_would_be_accepted_is_asked_again_too(patient: Faked) -> None:
    with through(Flaky("sbatch", TIMED_OUT)):
        assert client.test_only([]).ok


class Recorder(ThisMachine):
    """A terminal that records commands and runs none."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return subprocess.CompletedProcess(list(command), 0, "", "")


@pytest.mark.parametrize("says", ["variable", "header", "chain"])
def test_another_cluster_is_named_to_every_command(says: str, faked: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    if says == "variable":
        monkeypatch.setenv("SBATCH_CLUSTERS", "big")
    if says != "variable":
        script = faked.root / "scripts/slurm/01_collect.sh"
        script.parent.mkdir(parents=True)
        script.write_bytes(b"# gr\xfcn\n#SBATCH --mem=1G -M big\r\n")
    if says == "chain":  # once the chain is submitted its scripts may be lost
        attempt = Attempt(id="7", resources={"clusters": "big"})
        faked.chain(collect=ChainJob(needs=(), command=("collect",), script="", attempts=(attempt,)))
        script.unlink()
        os.mkfifo(script)
    with through(recorder := Recorder()):
        client.queue()
        client.accounting(["7"])
        client.show("7")
        client.update("7", comment="x")
        client.cancel(["7"])
        client.partitions()
    assert {call[0] for call in recorder.commands} == {"squeue", "sacct", "scontrol", "scancel", "sinfo"}
    assert all(call[1:3] == ["-M", "big"] for call in recorder.commands)


def test_the_chain_that_was_submitted_last_says_which_cluster_and_a_damaged_one_says_nothing(faked: Faked) -> None:
    assert other_cluster() == "", "no chain, and no script"
    for at, (name, cluster) in enumerate((("first", "big"), ("second", ""), ("third", "small"))):
        made = faked.chain(name)
        chains.write(faked.root, replace(made, sentinel={"clusters": cluster} if cluster else {}))
        path = chains.folder(faked.root, name) / "chain.json"
        os.utime(path, (at, at))
    assert other_cluster() == "small"
    path.write_bytes(b"\xff")
    os.utime(path, (9, 9))
    assert other_cluster() == ""


def test_how_long_to_ask_again_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("0", 0.0), ("7.5", 7.5)):
        monkeypatch.setenv(PATIENCE_VARIABLE, text)
        assert patience() == seconds
    monkeypatch.setenv(PATIENCE_VARIABLE, "long")
    with pytest.raises(UsageError, match="R2V_SLURM_PATIENCE=long: must be seconds"):
        patience()
    monkeypatch.delenv(PATIENCE_VARIABLE)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    outside = patience()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert patience() > outside > 0
