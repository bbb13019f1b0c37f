"""A job's money: one cap for all its models, no batch API, a killed process; each message is paid once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle, Timing, game, turn_of
from tests import warm
from tests.llm.talk import HeldLifecycle, paid_turns

KEY = "sk-not-to-be-written-anywhere"
PAIR = ("--models", "gpt-5.2", "claude-haiku-4-5", "--batch-service", "conversation")


def start(root: Path, emulator: Emulator, *words: str) -> subprocess.Popen[str]:
    root.mkdir(exist_ok=True)
    env = {
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_BASE_URL": emulator.openai_url,
        "ANTHROPIC_BASE_URL": emulator.anthropic_url,
    }
    return warm.start(root, "game", "run", *words, "--overrides", "poll_seconds=0.05", "figures=[]", env=env)


def run(root: Path, emulator: Emulator, *words: str) -> tuple[int, str]:
    """Return the exit code and all output."""
    said = start(root, emulator, *words)
    out, told = said.communicate(timeout=120)
    return said.returncode, out + told


def job(root: Path) -> Path:
    (folder,) = (root / "results" / "batch_jobs").iterdir()
    return folder


def spent(root: Path) -> dict[str, float]:
    return {path.parent.name: json.loads(path.read_text())["usd"] for path in job(root).glob("journal/*/progress.json")}


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
def test_the_cap_is_the_jobs_and_not_each_models(mode: str, tmp_path: Path) -> None:
    """Either model alone stays below the cap; both together would exceed it."""
    words = (*PAIR, "--mode", mode, "--interactions", "10", "--messages", "4")
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        assert run(tmp_path / "free", emulator, *words)[0] == 0
    whole = spent(tmp_path / "free")
    cap = 0.9 * sum(whole.values())
    assert len(whole) == 2 and max(whole.values()) < cap
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        code, said = run(tmp_path / "capped", emulator, *words, "--max-usd", str(cap))
        first = sum(paid_turns(emulator).values())
        assert code == 5 and f"--max-usd={cap}: $" in said and "raise --max-usd and run the same command again" in said
        assert 0 < sum(spent(tmp_path / "capped").values()) <= cap and 0 < first < 40
        code, said = run(tmp_path / "capped", emulator, *words, "--max-usd", str(20 * cap))
        assert code == 0, said
        assert list(paid_turns(emulator).values()) == [1] * 40
        assert run(tmp_path / "capped", emulator, *words, "--max-usd", str(cap))[0] == 0, "all is there: nothing to pay"
        assert sum(paid_turns(emulator).values()) == 40
    raw = "raw/interactions.json"
    assert (job(tmp_path / "capped") / raw).read_bytes() == (job(tmp_path / "free") / raw).read_bytes()


def test_where_no_batch_can_be_had_the_rest_is_called_and_said_so(tmp_path: Path) -> None:
    words = (
        "--models",
        "gpt35",
        "--batch-service",
        "openai-conversation",
        "--interactions",
        "4",
        "--messages",
        "3",
    )
    never = Timing(late=1e6)
    with Emulator(answer=game, faults=[Fault("file_late_404")], timing=never) as emulator:
        code, said = run(tmp_path / "first", emulator, *words)
        assert code == 0, said
        assert "at full price: provider=openai reason=404" in said and "0 incomplete" in said
        assert {bill.mode for bill in emulator.ledger().bills} == {"sync"}
        assert list(paid_turns(emulator).values()) == [1] * 12
        code, said = run(tmp_path / "only", emulator, *words, "--mode", "batch")
        assert code == 5 and "openai takes no batches" in said
        assert sum(paid_turns(emulator).values()) == 12


def rows(folder: Path) -> Iterator[list[str]]:
    """Yield the kinds of rows of each model's journal."""
    for path in folder.glob("results/batch_jobs/*/journal/*/journal.jsonl"):
        yield [json.loads(line)["row"] for line in path.read_bytes().split(b"\n")[:-1]]


def all_out(root: Path, wave: int) -> bool:
    """True if both models have made their batch of this wave, and neither has ended."""
    kinds = list(rows(root))
    made = [(one.count("created"), one.count("intent"), one.count("ended")) for one in kinds]
    return len(made) == 2 and all(created == intent == wave > ended for created, intent, ended in made)


def test_killed_in_three_waves_it_pays_for_nothing_twice(tmp_path: Path) -> None:
    """Pairs of two providers, batches alone, SIGKILL while batches of both are in progress."""
    words = (*PAIR, "--mode", "batch", "--interactions", "2", "--messages", "4")
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        assert run(tmp_path / "whole", emulator, *words)[0] == 0
    held = HeldLifecycle()
    with Emulator(answer=game, lifecycle=held) as emulator:
        for wave in (1, 2, 3):
            process = start(tmp_path / "cut", emulator, *words)
            while not all_out(tmp_path / "cut", wave) and process.poll() is None:
                time.sleep(0.01)
            process.kill()
            told = process.communicate()[1]
            assert process.returncode == -signal.SIGKILL, told
            held.end_those_made()
        held.release()
        code, said = run(tmp_path / "cut", emulator, *words)
        assert code == 0, said
        assert list(paid_turns(emulator).values()) == [1] * 8
        assert len(emulator.batches()) == 8, "each wave of each model was sent once"
    raw = "raw/interactions.json"
    assert (job(tmp_path / "cut") / raw).read_bytes() == (job(tmp_path / "whole") / raw).read_bytes()


def test_two_processes_do_not_play_one_job(tmp_path: Path) -> None:
    """The second one exits with 6; the first plays on, and no file or line of either contains a key."""
    words = (*PAIR, "--mode", "batch", "--interactions", "2", "--messages", "2")
    held = HeldLifecycle()
    with Emulator(answer=game, lifecycle=held) as emulator:
        first = start(tmp_path, emulator, *words)
        while not all_out(tmp_path, 1) and first.poll() is None:
            time.sleep(0.01)
        code, said = run(tmp_path, emulator, *words)
        assert code == 6 and len(said.strip().splitlines()) <= 2, said
        held.release()
        out, told = first.communicate(timeout=120)
        assert first.returncode == 0, told
        assert list(paid_turns(emulator).values()) == [1] * 4
    assert KEY not in said + out + told
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_killed_among_direct_calls_at_most_those_are_repeated_and_told(tmp_path: Path) -> None:
    words = (*PAIR, "--mode", "concurrent", "--max-concurrent", "2", "--interactions", "6", "--messages", "4")
    with Emulator(answer=game, timing=Timing(latency=0.3)) as emulator:
        process = start(tmp_path, emulator, *words)
        while len(emulator.ledger().bills) < 8 and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        code, said = run(tmp_path, emulator, *words)
        assert code == 0, said
        paid = paid_turns(emulator)
    journals = job(tmp_path).glob("journal/*/journal.jsonl")
    lost = {
        turn_of(row["id"])
        for path in journals
        for row in map(json.loads, path.read_text().splitlines())
        if row["row"] == "lost"
    }
    assert len(paid) == 24 and max(paid.values()) <= 2
    assert {turn for turn, times in paid.items() if times > 1} <= lost and len(lost) <= 4
    assert not lost or "direct calls of the last process have no answer" in said
