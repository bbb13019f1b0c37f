"""`r2v check-env`: every fault of the contract is one sentence, and a valid benchmark is confirmed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.envs.chain import ChainBenchmark
from r2v.envs.check import check_benchmark
from r2v.envs.desk import Desk
from r2v.storage.paths import BENCHMARK_COUNTS
from tests.envs.broken import CONTRACT, QUIET, BeginsSolved, Breaks, CannotBeMade, Corridors, EqualGoals, TuplePayloads


@pytest.mark.parametrize("benchmark", [ChainBenchmark(num_tasks=50), Desk(), Corridors()], ids=lambda b: b.name)
def test_a_benchmark_that_keeps_the_contract_has_no_fault(benchmark: Any) -> None:
    findings = check_benchmark(benchmark)
    assert findings.faults == [] and findings.num_episodes == 3
    assert findings.outcomes == {"empty": (0, 3), "wrong": (0, 3), "gold": (3, 3)}


def test_a_task_that_begins_solved_is_no_fault_of_its_grader() -> None:
    findings = check_benchmark(BeginsSolved())
    assert findings.faults == [] and sum("is solved by doing nothing" in note for note in findings.notes) == 3
    assert "empty" not in findings.outcomes


def test_players_that_end_no_task_are_noted() -> None:
    notes = check_benchmark(ChainBenchmark(num_tasks=50, length=40)).notes
    assert [note.partition(" ended none of its 3 tasks")[0] for note in notes] == [
        "the empty player",
        "the wrong player",
    ]


@pytest.mark.parametrize("made_by", [*CONTRACT, *QUIET], ids=lambda made_by: made_by.__name__)
def test_every_fault_is_told_in_a_sentence(made_by: Any) -> None:
    findings = check_benchmark(made_by())
    assert any((CONTRACT | QUIET)[made_by] in fault for fault in findings.faults), findings.faults
    assert all("\n" not in fault and len(fault) < 400 for fault in findings.faults)


@pytest.mark.parametrize("made_by", [TuplePayloads, EqualGoals])
def test_a_fault_of_every_task_is_one_line_with_their_count(made_by: Any) -> None:
    (fault,) = [text for text in check_benchmark(made_by()).faults if QUIET[made_by] in text]
    assert re.search(r"\(.* and \d\d more\)$", fault), fault


@pytest.mark.parametrize(("made_by", "words"), [(Breaks, "ConnectionError"), (CannotBeMade, "make() raised")])
def test_what_the_world_raises_is_told_with_its_line(made_by: Any, words: str) -> None:
    (fault, *_) = [text for text in check_benchmark(made_by()).faults if words in text]
    assert "(broken.py:" in fault


def test_the_command_prints_faults_and_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check-env", "tests.envs.broken:FourValues"]) == 2
    out, err = capsys.readouterr()
    assert "fault  step gives a tuple of 4" in out
    assert err.splitlines()[-1].startswith("r2v: tests.envs.broken:FourValues: ") and "Traceback" not in err
    assert main(["check-env", "tests.envs.broken:Corridors"]) == 0
    assert "keeps the contract" in capsys.readouterr().out
    assert main(["check-env", "--overrides", "env.benchmark=chain", "env.options.num_tasks=50"]) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in written} == {tmp_path / BENCHMARK_COUNTS} and len(written) == 2, (
        "counts of each of one's own"
    )
