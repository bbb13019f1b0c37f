"""The command line: what its words mean, and how it ends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from r2v.cli.game import build_parser, make_agents, parse_rules
from r2v.cli.game_options import GameDefaults
from r2v.emulator import Emulator, Fault, Lifecycle, game
from r2v.errors import UsageError
from r2v.game.play.players import model_agent
from r2v.game.play.rules import Rules
from tests import warm
from tests.trust.kinds import unlisted


def run(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    unset: dict[str, str | None] = {name: None for name in os.environ if "API_KEY" in name or "BASE_URL" in name}
    return warm.run(root, "game", *words, env=unset | env)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--batch-service", "opnai"], 2, "did you mean openai"),
        (["--game-mode", "standart"], 2, "did you mean standard"),
        (["--agent-type", "gpt-99"], 2, "neither an agent type nor a listed model"),
        (["--batch-service", "openai", "--agent-type", "claude_opus"], 2, "or conversation for both"),
        (["--game-mode", "retained", "--num-agents", "2"], 2, "at least 3 agents, got 2"),
        (["--rules", "payofs.both=2"], 2, "payofs"),
        (["--messages", "1"], 2, "messages_per_interaction=1"),
        (["--max-concurrent", "0"], 2, "--max-concurrent"),
        ([], 2, "OPENAI_API_KEY is not set"),
        (["--analyse", "nowhere"], 3, "no results of a finished job"),
        (["--judge", "gpt4o"], 2, "needs --analyse"),
    ],
)
def test_bad_words_end_in_one_line_and_a_code(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == code
    assert says in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_nothing_played_to_its_end_is_an_empty_result(tmp_path: Path) -> None:
    with Emulator(answer=game, faults=[Fault("refusal")], lifecycle=Lifecycle(seconds=0)) as emulator:
        done = run(
            tmp_path,
            "--interactions",
            "2",
            "--messages",
            "2",
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
            "--compare",
            "--batch-service",
            "auto",
            "--mode",
            "batch",
            "--game-mode",
            "targeted",
            "--interactions",
            "12",
            "--messages",
            "2",
            "--poll-seconds",
            "0.05",
            **env,
        )
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / "results" / "batch_jobs").iterdir()
        assert folder.name.startswith("targeted_conversation_")
        labels = tmp_path / "labels.jsonl"
        labels.write_text('{"id": "conversation_0", "agent": "1", "revealed": true}\n')
        judged = run(tmp_path, "--analyse", str(folder), "--judge", "gpt4o", "--labels", str(labels), **env)
    assert judged.returncode == 3 and "sensitivity and specificity need both" in judged.stderr
    assert "mean score per session" in judged.stdout, "the analysis stands without the judge"
    models = (folder / "analysis" / "models.csv").read_text()
    assert all(model in models for model in ("gpt-6.1-terra", "claude-opus-5-5", "claude-sonnet-5-5"))
    assert unlisted(tmp_path) == []


def test_rules_from_words() -> None:
    rules = parse_rules(["memory=true", "resell=true", "payoffs.both=2", "target_bonus=4.5"])
    assert (rules.memory, rules.resell, rules.payoffs.both, rules.target_bonus) == (True, True, 2.0, 4.5)
    assert parse_rules([]) == Rules()
    with pytest.raises(UsageError, match="memory"):
        parse_rules(["memory=perhaps"])


def test_models_take_turns_and_names_do_not_tell_them() -> None:
    agents = make_agents([model_agent("gpt35"), model_agent("claude_opus")], 4)
    assert [agent.service.model for agent in agents if agent.service] == ["gpt-3.5-turbo", "claude-3-opus-20240229"] * 2
    assert [agent.name for agent in agents] == ["Agent1", "Agent2", "Agent3", "Agent4"]
    with pytest.raises(UsageError, match="fewer than the 2 models"):
        make_agents([model_agent("gpt35"), model_agent("gpt4o")], 1)


def test_what_the_seed_says_of_no_options() -> None:
    """100 interactions with 5 messages per interaction using the default batch service."""
    parsed = build_parser(GameDefaults()).parse_args([])
    assert (parsed.interactions, parsed.messages, parsed.batch_service) == (100, 5, "default")
