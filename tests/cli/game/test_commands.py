"""The command line of the game: the meaning of its words, and its exit codes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from r2v.cli.game.commands import build_parser
from r2v.cli.game.options import GameDefaults
from r2v.cli.game.settings import game_settings
from r2v.emulator import Emulator, Fault, Lifecycle, game
from r2v.errors import UsageError
from r2v.game.play.rules import Rules
from tests import warm
from tests.trust import drawn
from tests.trust.kinds import unlisted


def run(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    unset: dict[str, str | None] = {name: None for name in os.environ if "API_KEY" in name or "BASE_URL" in name}
    return warm.run(root, "game", *words, env=unset | env)


def played(*words: str) -> list[str]:
    """Return the words of a run that draws nothing."""
    return ["run", *words, "--overrides", "figures=[]"]


SET = ("--overrides",)
BAD_WORDS = [
    (["run", "--batch-service", "opnai"], 2, "did you mean openai"),
    (["run", "--game-mode", "standart"], 2, "did you mean standard"),
    (["run", "--agent-type", "gpt-99"], 2, "neither an agent type nor"),
    (["run", "--batch-service", "openai", "--agent-type", "claude_haiku"], 2, "or conversation for both"),
    (["run", "--game-mode", "retained", *SET, "num_agents=2"], 2, "at least 3 agents, got 2"),
    (["run", *SET, "rules.payofs.both=2"], 2, "payofs"),
    (["run", "--messages", "1"], 2, "messages_per_interaction=1"),
    (["run", "--max-concurrent", "0"], 2, "--max-concurrent"),
    (["run", "--models", "gpt-5.2"], 2, "OPENAI_API_KEY is not set"),
    (["run", "--models", "gpt-5.2", *SET, "effort=[low,huge]", "--dry-run"], 2, "huge"),
    (["run", "--models", "claude-opus-5-5", *SET, "temperature=[0.2,1]", "--dry-run"], 2, "takes no temperature"),
    (["run", *SET, "temperature=[3]"], 2, "temperature must be in [0, 2], got 3"),
    (["run", *SET, "temperature=[1,1]"], 2, "temperature must be distinct"),
    (["run", *SET, "temprature=[1]"], 2, "temprature"),
    (["run", "--persona", "shy"], 2, "give NAME=TEXT, NAME=@FILE, or none"),
    (["run", "--persona", "shy=@nowhere.txt"], 2, "nowhere.txt cannot be read"),
    (["run", "--system-prompt", "mine=Be nice."], 2, "lacks {secret}"),
    (["run", "--system-prompt", "mine=Keep {secret}, {nam}."], 2, "no field {nam}"),
    (["run", "--against", "gpt-99"], 2, "neither an agent type nor"),
    (["run", "--against", "self", "--game-mode", "diversity"], 2, "--against all"),
    (["run", "--against", "self", *SET, "num_agents=3"], 2, "the number of arms decides"),
    (["run", *SET, "temperature=[0,1]", "num_agents=1"], 2, "fewer than the 2 arms"),
    (["run", "--replicates", "2", "--interactions", "3"], 2, "give one of them"),
    (["run", *SET, "figures=[gif]"], 2, "figures must be pdf, png or svg, got gif"),
    (["figures", "nowhere", "--figures", "gif"], 2, "--figures"),
    (["power"], 2, "nothing is varied"),
    (["power", *SET, "temperature=[0,1]", "rate=0.5", "difference=0.6"], 2, "leave [0, 1] both ways"),
    (["analyse", "nowhere"], 3, "no results of a finished job"),
    (["analyse", "nowhere", "--judge", "gpt4o"], 2, "go together"),
    (["figures", "nowhere"], 3, "no results of a finished job"),
    (["label", "nowhere"], 3, "no results of a finished job"),
    (["check", "nowhere"], 3, "nowhere: cannot be read"),
    (["check", "."], 2, "is a folder"),
    ([], 2, "<command>"),
]


@pytest.mark.parametrize(("words", "code", "says"), drawn(BAD_WORDS, 14, "bad words of the game"))
def test_bad_words_end_in_one_line_and_a_code(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == code
    assert says in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_played_to_its_end_is_an_empty_result(tmp_path: Path) -> None:
    with Emulator(answer=game, faults=[Fault("refusal")], lifecycle=Lifecycle(seconds=0)) as emulator:
        done = run(
            tmp_path,
            *played("--interactions", "2", "--messages", "2"),
            OPENAI_API_KEY="any",
            OPENAI_BASE_URL=emulator.openai_url,
        )
    assert done.returncode == 4
    assert "none of 2 conversations was played to its end" in done.stderr
    assert "0 interactions in standard mode, 2 incomplete" in done.stdout


def test_a_comparison_of_two_providers_and_its_judge(tmp_path: Path) -> None:
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        env = {
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_API_KEY": "any",
            "OPENAI_BASE_URL": emulator.openai_url,
            "ANTHROPIC_BASE_URL": emulator.anthropic_url,
        }
        done = run(
            tmp_path,
            *played("--batch-service", "auto", "--mode", "batch", "--game-mode", "targeted"),
            *("compare=true", "poll_seconds=0.05", "--interactions", "12", "--messages", "2"),
            **env,
        )
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / "results" / "batch_jobs").iterdir()
        assert folder.name.startswith("targeted_conversation_")
        labels = tmp_path / "labels.jsonl"
        labels.write_text('{"id": "conversation_0", "agent": "1", "revealed": true}\n')
        judged = run(tmp_path, "analyse", str(folder), "--judge", "gpt4o", "--labels", str(labels), **env)
    assert judged.returncode == 3 and "sensitivity and specificity need both" in judged.stderr
    assert "mean score per session" in judged.stdout, "the analysis stands without the judge"
    models = (folder / "analysis" / "models.csv").read_text()
    assert all(model in models for model in ("gpt-6.1-terra", "claude-opus-5-5", "claude-sonnet-5-5"))
    assert unlisted(tmp_path) == []


def test_rules_from_words() -> None:
    words = ("memory=true", "resell=true", "payoffs.both=2", "target_bonus=4.5")
    rules = game_settings([f"rules.{word}" for word in words]).rules
    assert (rules.memory, rules.resell, rules.payoffs.both, rules.target_bonus) == (True, True, 2.0, 4.5)
    assert game_settings([]).rules == Rules()
    with pytest.raises(UsageError, match="memory"):
        game_settings(["rules.memory=perhaps"])


DESIGN = (
    *("--models", "gpt-5.2", "claude-haiku-4-5", "--persona", "none", "shy=You are shy."),
    *("--against", "claude-sonnet-4-6", "--overrides", "temperature=[0.2,1]"),
)


def test_a_design_is_planned_priced_played_and_drawn(tmp_path: Path) -> None:
    """Two models, two temperatures and two personas against a third model: eight arms, five replicates."""
    words = (
        *DESIGN,
        "--batch-service",
        "conversation",
        "--replicates",
        "5",
        "--messages",
        "2",
        "--mode",
        "concurrent",
        "--max-concurrent",
        "16",
    )
    planned = run(tmp_path, "power", *DESIGN, "rate=0.3", "difference=0.2")
    assert planned.returncode == 0, planned.stderr
    assert "8 arms, 3 contrasts" in planned.stdout and "a replicate is 16 conversations" in planned.stdout
    priced = run(tmp_path, "run", *words, "--dry-run")
    assert priced.returncode == 0, priced.stderr
    assert (
        "requests   160 for 80 conversations of 2 messages" in priced.stdout and "dollars    about $" in priced.stdout
    )
    assert list(tmp_path.iterdir()) == [], "nothing is sent and nothing written"
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        env = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": emulator.openai_url}
        env |= {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": emulator.anthropic_url}
        done = run(tmp_path, "run", *words, "--overrides", "figures=[svg]", **env)
        assert done.returncode == 0, done.stderr
        assert len(emulator.ledger().bills) == 160 + 3, "and a call before each model's first request"
    assert "80 of 80 conversations played to their end, 0 incomplete" in done.stdout
    (folder,) = (tmp_path / "results" / "batch_jobs").iterdir()
    assert {path.name for path in (folder / "figures").iterdir()} >= {"factors.svg", "rates.svg"}
    effects = (folder / "analysis" / "factors.csv").read_text().splitlines()
    assert len(effects) == 1 + 3 + 3, "three contrasts and three interactions"
    assert "temperature: 1 against 0.2 changes the reveal rate by" in done.stdout
    assert "(opponent)" in (folder / "analysis" / "models.csv").read_text()
    drawn = run(tmp_path, "figures", str(folder), "--figures", "png")
    assert drawn.returncode == 0 and (folder / "figures" / "factors.png").is_file()
    assert unlisted(tmp_path) == []


def test_what_the_seed_says_of_no_options() -> None:
    """The seed's defaults: 100 interactions with 5 messages per interaction using the default batch service."""
    parsed = build_parser(GameDefaults()).parse_args([])
    assert (parsed.interactions or GameDefaults().interactions, parsed.messages) == (100, 5)
    assert parsed.batch_service == "default"


def on_a_full_disk(root: Path, kilobytes: int, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run `r2v game` where no file may grow beyond so many kilobytes."""
    limited = ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "limited", warm.python(), "-m", "r2v", "game", *words]
    laid = {**os.environ, "PYTHONPATH": str(warm.ROOT), "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(limited, cwd=root, env=laid, capture_output=True, text=True, timeout=120)


def test_a_full_disk_is_one_line_and_costs_nothing_twice(tmp_path: Path) -> None:
    """The disk fills up before the first entry of the ledger or while results are written: the journal has the batch or
    the request was never sent."""
    words = played("--models", "gpt-6-luna", "--mode", "batch", "--replicates", "10", "--messages", "2")
    words += ["poll_seconds=0.05", "--against", "self"]
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0)) as emulator:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": emulator.openai_url}
        ends = []
        for kilobytes in (1, 12):
            ended = on_a_full_disk(tmp_path, kilobytes, env, *words)
            ends.append((ended.returncode, ended.stderr.strip().splitlines()[-1]))
        assert [code for code, _ in ends] == [5] * 2, ends
        assert all("cannot write" in line and "make room" in line for _, line in ends), ends
        assert on_a_full_disk(tmp_path, 10_000, env, *words).returncode == 0
        turns = [bill.turn for bill in emulator.ledger().bills if bill.mode == "batch"]
        assert len(turns) == len(set(turns)) == 40, "a call before the run may be made again, and nothing else"
