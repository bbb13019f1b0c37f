"""Explain: one screen with the failure, its class, the first error line, the action of healing, and the next
command."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, AttemptFailure, config_sha
from r2v.slurm.views import logs
from tests.slurm.faked import NEEDS, Faked, ago
from tests.slurm.faked import faked as faked

REPOSITORY = Path(__file__).parents[3]
TRACEBACK = """r2v job started: job=108 stage=candidates host=g1 restart=0 command=r2v generate_candidates --config x
[rank0]: Traceback (most recent call last):
[rank0]:   File "r2v/policy/candidates.py", line 88, in score
[rank0]:     value = table[key]
[rank0]: KeyError: 'desk-017'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "r2v/cli/main.py", line 90, in main
RuntimeError: later
"""


def broken(faked: Faked, kind: str, line: str, action: str, rc: int = 1, *, healed_before: bool = False) -> None:
    """Make a chain whose candidates failed for good; the jobs behind it wait."""
    chain = faked.chain()
    tries = (
        [
            Attempt(
                id="108",
                sentinel="109",
                submitted_at=ago(3600),
                resources={"mem": "48G"},
                failure=AttemptFailure(
                    kind="host_oom",
                    line="killed at its memory limit",
                    action="submitted again as 150, mem 48G -> 72G",
                    at=ago(900),
                ),
            )
        ]
        if healed_before
        else []
    )
    last = Attempt(
        id="150" if tries else "108",
        sentinel="151" if tries else "109",
        submitted_at=ago(1800),
        resources={"mem": "72G"},
        failure=AttemptFailure(kind=kind, line=line, action=action, at=ago(700)),
    )
    chains.write(faked.root, chain.with_job("candidates", attempts=(*tries, last)))
    for job_id, job in (("100", "collect"), ("102", "perturb"), ("104", "bc"), ("106", "verifier")):
        faked.done(job_id, job)
    faked.failed(last.id, kind, line, rc, "candidates")
    faked.accounted(last.id, "FAILED", ExitCode=f"{rc}:0")
    for number in range(110, 120):
        faked.queued(str(number), reason="DependencyNeverSatisfied" if number == 110 else "Dependency")
    faked.answer()


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_one_screen_says_it_all(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    broken(
        faked,
        "bug",
        "KeyError: 'desk-017' (r2v/policy/candidates.py:88)",
        "not tried again: trying again does not mend a failure of kind code",
        healed_before=True,
    )
    (faked.root / "logs" / "candidates_desk_noisy_150.out").write_text(TRACEBACK)
    told = explained(capsys)
    lines = told.splitlines()
    assert lines[0] == "desk_noisy: candidates failed: bug" and len(lines) <= 24
    assert "  what     KeyError: 'desk-017' (r2v/policy/candidates.py:88)" in lines
    assert "job 150, on g1, attempt 2, ended" in told
    assert "attempt 1 (108): host_oom, killed at its memory limit; submitted again as 150, mem 48G -> 72G" in told
    assert "attempt 2 (150): bug" in told and "not tried again" in told
    assert "preference, router_features, router, evaluate, ablations keep their ids and places" in told
    assert "logs/candidates_desk_noisy_150.out" in told
    assert '  error    File "r2v/policy/candidates.py", line 88, in score' in lines and "later" not in told
    assert lines[-1] == "  go on    mend the code, then: r2v resume desk_noisy --from candidates"


@pytest.mark.parametrize(
    ("kind", "rc", "told"),
    [
        ("host_oom", 137, "raise --mem in the header that sizes it, then: r2v resume desk_noisy --from candidates"),
        ("input", 3, "make the input that the line names again, then: r2v resume desk_noisy --from candidates"),
        ("usage", 2, "r2v resume desk_noisy --from candidates --overrides KEY=VALUE"),
        ("interrupted", 75, "raise --time in its script's header, then: r2v resume desk_noisy --from candidates"),
        ("cancelled", 143, "r2v resume desk_noisy --from candidates"),
    ],
)
def test_each_class_has_its_way_on(
    kind: str, rc: int, told: str, faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(faked, kind, "a line", "not tried again", rc)
    screen = explained(capsys, "desk_noisy")
    assert screen.splitlines()[-1] == f"  go on    {told}" and screen.splitlines()[0].endswith(kind)


@pytest.mark.parametrize(
    ("device", "action", "told"),
    [
        ("cpu", "not tried again", "perturb.mem=108G"),
        ("cuda", "not tried again", "generate_candidates.mem=108G"),
        ("cpu", "not tried again: it had 72G, and it may have no more", "perturb.partition=NAME perturb.mem=108G"),
    ],
)
def test_more_memory_is_asked_for_in_the_header_that_sizes_the_job(
    device: str, action: str, told: str, faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(faked, "host_oom", "killed at its memory limit", action, 137)
    shutil.copytree(REPOSITORY / "scripts/slurm", faked.root / "scripts/slurm")
    (chains.folder(faked.root, "desk_noisy") / "config.yaml").write_text(f"policy: {{device: {device}}}\n")
    assert cli.main(["cluster", "set", "mem=72G"]) == 0
    resume = "r2v resume desk_noisy --from candidates"
    assert f"  go on    r2v cluster set {told} && {resume}" in explained(capsys).splitlines()
    assert cli.main(["cluster", "set", "perturb.mem=90G", "generate_candidates.mem=90G"]) == 0
    assert f"  go on    {resume}" in (lines := explained(capsys).splitlines())
    assert any(line.strip().startswith("it asks for mem=90G then") for line in lines)


def test_cuda_oom_names_the_overrides_with_the_same_effective_batch(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = "training: {batch_size: 8, gradient_accumulation_steps: 2}\n"
    chain = dataclasses.replace(faked.chain(), config_sha=config_sha(configuration))
    (chains.folder(faked.root, "desk_noisy") / "config.yaml").write_text(configuration)
    failed = AttemptFailure(
        kind="cuda_oom", line="CUDA out of memory", action="not tried again: answered 2 times", at=ago(9)
    )
    chains.write(
        faked.root,
        chain.with_attempt(
            "bc",
            Attempt(
                id="104",
                sentinel="105",
                failure=failed,
                overrides=("training.bc.batch_size=4", "training.bc.gradient_accumulation_steps=4"),
            ),
        ),
    )
    faked.done("100"), faked.done("102", "perturb"), faked.done("106", "verifier")
    faked.failed("104", "cuda_oom", "CUDA out of memory")
    faked.answer()
    assert explained(capsys).splitlines()[-1] == (
        "  go on    r2v resume desk_noisy --from bc --overrides training.bc.batch_size=1 "
        "training.bc.gradient_accumulation_steps=16"
    )


def test_the_first_that_broke_is_explained_and_others_by_name(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    broken(faked, "input", "x.jsonl:3: cut", "not tried again", 3)
    assert explained(capsys, "desk_noisy", "5").startswith("desk_noisy: preference blocked\n")
    assert explained(capsys, "preference").startswith("desk_noisy: preference blocked\n")
    assert explained(capsys).startswith("desk_noisy: candidates failed: input\n")
    assert cli.main(["explain", "candidate"]) == 2


def test_what_a_dead_sentinel_left_is_answered_by_the_next_look(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(faked, "input", "x.jsonl:3: cut", "x", 3)
    chain = chains.read(faked.root, "desk_noisy")
    (chains.folder(faked.root, "desk_noisy") / "config.yaml").write_text("seed: 0\n")
    chain = dataclasses.replace(chain, config_sha=config_sha("seed: 0\n"))
    chains.write(
        faked.root,
        chain.with_attempt("candidates", dataclasses.replace(chain.jobs["candidates"].attempts[-1], failure=None)),
    )
    assert cli.main(["status"]) == 1
    assert "trying again does not mend a failure of kind input" in capsys.readouterr().out, "the look answers it"
    assert "  what     x.jsonl:3: cut" in explained(capsys)


@pytest.mark.parametrize("words", [("logs", "collect"), ("cost",)])
def test_commands_that_show_look_after_the_chain_first(words: tuple[str, ...], faked: Faked) -> None:
    broken(faked, "bug", "", "not tried again")
    chain = dataclasses.replace(chains.read(faked.root, "desk_noisy"), config_sha=config_sha("seed: 0\n"))
    (chains.folder(faked.root, "desk_noisy") / "config.yaml").write_text("seed: 0\n")
    last = dataclasses.replace(chain.jobs["candidates"].attempts[-1], failure=None)
    chains.write(faked.root, chain.with_job("candidates", attempts=(last,)))
    (faked.root / "logs" / "collect_desk_noisy_100.out").write_text("x\n")
    assert cli.main([*words]) == 0
    now = chains.read(faked.root, "desk_noisy").jobs["candidates"].attempts[-1]
    assert now.failure is not None and now.failure.kind == "bug"


def test_what_is_never_empty(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk neither the record nor the log has a message."""
    broken(faked, "environment", "", "not tried again", 5)
    told = next(line for line in explained(capsys).splitlines() if line.startswith("  what "))
    assert told == "  what     neither its record nor Slurm says more than: environment"


def test_what_was_healed_is_told_when_all_is_well(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    broken(faked, "bug", "x", "y", healed_before=True)
    chain = chains.read(faked.root, "desk_noisy")
    chains.write(faked.root, chain.with_attempt("candidates", Attempt(id="150", reason="host_oom")))
    faked.queue.clear(), faked.accounts.clear()
    for at, job in enumerate(NEEDS):
        faked.done("150" if job == "candidates" else str(100 + 2 * at), job)
    faked.answer()
    told = explained(capsys)
    assert told.startswith("desk_noisy: nothing is broken (10 done)\n")
    assert "healed candidates attempt 1 (108): host_oom" in " ".join(told.split())


def test_no_chain_is_a_usage_error(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    views = ("explain", "status", "cost", "graph")
    assert [cli.main([view]) for view in views] == [2, 2, 2, 2]
    assert capsys.readouterr().err.count("submit one: in a project that `r2v init DIR` makes; or run the stages") == 4
    (faked.root / "run_all.sh").touch()
    assert cli.main(["status"]) == 2
    assert "no chain of jobs in outputs/.chains; submit one: bash run_all.sh desk; or run" in capsys.readouterr().err


def test_which_chain_has_to_be_said_where_there_are_two(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    faked.chain(), faked.chain("mrp", first=500)
    faked.answer()
    assert cli.main(["explain"]) == 2 and "Name one of desk_noisy, mrp" in capsys.readouterr().err
    assert cli.main(["graph", "mpr"]) == 2 and "did you mean mrp?" in capsys.readouterr().err


@pytest.mark.parametrize("view", ["explain", "status"])
def test_an_unknown_chain_is_refused_with_the_nearest(
    view: str, faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    faked.chain()
    faked.answer()
    assert cli.main([view, "desk_nosy"]) == 2 and "desk_noisy" in capsys.readouterr().err


def test_logs_of_the_last_attempt_by_name_number_and_id(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    broken(faked, "bug", "x", "y", healed_before=True)
    (faked.root / "logs" / "candidates_desk_noisy_108.out").write_text("the first\n")
    (faked.root / "logs" / "candidates_desk_noisy_150.out").write_text(TRACEBACK)
    for words in (["candidates"], ["4"], ["desk_noisy", "candidates"], ["150"]):
        assert cli.main(["logs", *words]) == 0 and capsys.readouterr().out == TRACEBACK
    assert cli.main(["logs", "108"]) == 0 and capsys.readouterr().out == "the first\n"
    assert cli.main(["logs", "candidate"]) == 2 and "did you mean candidates?" in capsys.readouterr().err
    assert cli.main(["logs", "preference"]) == 3 and "no logs/*_110.out" in capsys.readouterr().err


def test_errors_are_the_first_traceback_of_each_life(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    broken(faked, "bug", "x", "y")
    (faked.root / "logs" / "candidates_desk_noisy_108.out").write_text(
        TRACEBACK + "r2v job started: job=108 stage=candidates host=g2 restart=1 command=r2v x\nall is well\n"
        "slurmstepd: error: Exceeded job memory limit\n"
    )
    assert cli.main(["logs", "candidates", "--errors"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "-- start 1 of 2",
        "Traceback (most recent call last):",
        '  File "r2v/policy/candidates.py", line 88, in score',
        "    value = table[key]",
        "KeyError: 'desk-017'",
        "-- start 2 of 2",
        "slurmstepd: error: Exceeded job memory limit",
    ]


def test_following_ends_with_the_job(faked: Faked) -> None:
    broken(faked, "bug", "x", "y")
    path = faked.root / "logs" / "candidates_desk_noisy_108.out"
    path.write_text("one\n")
    stream = logs.follow(Path(), "desk_noisy", "108", pause=0.01)
    assert next(stream) == "one\n"
    with path.open("a") as file:
        file.write("two\n")
    assert list(stream) == ["two\n"] and faked.calls == []


def test_a_job_submitted_by_hand_is_explained_where_there_is_no_chain(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    faked.failed("7", "input", "needs preference: missing", 3, "router_features")
    faked.answer()
    lines = explained(capsys).splitlines()
    assert lines[:2] == ["desk_noisy: router_features failed: input", "  what     needs preference: missing"]
    assert lines[-1] == "  go on    mend what the line names, then the same sbatch line again"
