"""Seed 001: its command lines and its Python example, with the loopback emulator of the providers.

`seed_001.md` is the seed itself, byte for byte. Changed are the polling interval in a line, and the imports in the
example.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2v.cli.game.commands import build_parser
from r2v.cli.game.options import GameDefaults
from r2v.emulator import Emulator, Lifecycle, game
from r2v.game.service.services import SERVICES
from tests import warm
from tests.llm.talk import paid_turns

REPOSITORY = Path(__file__).parents[2]
TEXT = (Path(__file__).parent / "seed_001.md").read_text()
SHA256 = "1fbedb2fa5b3f53068fee348fb6c1e7dd4335f9409b91dcf8ececd8090bd3a9d"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)
LINES = [text.replace("\\\n", " ").strip() for language, text in BLOCKS if language == "bash"]
RUN = [line for line in LINES if "[" not in line]
OPTIONS = [line for line in LINES if "[" in line]
IMPORTS = {
    "from src.ai_secret_game.models.agent import Agent": "from r2v.game import Agent",
    "from src.ai_secret_game.models.game import GameMode": "from r2v.game import GameMode",
    "from src.ai_secret_game.services.game_service import GameService": "from r2v.game import GameService",
    "from src.ai_secret_game.services.openai_conversation_batch_service import OpenAIConversationBatchService": (
        "from r2v.game import OpenAIConversationBatchService"
    ),
    "from src.ai_secret_game.services.model_agents import GPT35Agent": "from r2v.game import GPT35Agent",
}


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(answer=game, lifecycle=Lifecycle(seconds=0), folder=tmp_path / "emulator") as running:
        yield running


def typed(emulator: Emulator, root: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    keys = {
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_API_KEY": "any",
        "OPENAI_BASE_URL": emulator.openai_url,
        "ANTHROPIC_BASE_URL": emulator.anthropic_url,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
    }
    (root / "bin").mkdir(exist_ok=True)
    if not (root / "bin" / "python").exists():
        (root / "bin" / "python").write_text(f'#!/bin/sh\nexec {warm.python()} "$@"\n')
        (root / "bin" / "python").chmod(0o755)
    return subprocess.run(words, cwd=root, env={**os.environ, **keys}, capture_output=True, text=True)


def jobs(root: Path) -> list[Path]:
    return sorted((root / "results" / "batch_jobs").iterdir())


def paid_once(emulator: Emulator, requests: int) -> bool:
    paid = paid_turns(emulator)
    return len(paid) == requests and set(paid.values()) == {1}


def test_the_copy_is_the_seed() -> None:
    assert hashlib.sha256(TEXT.encode()).hexdigest() == SHA256
    assert len(RUN) == 5 and len(OPTIONS) == 1


REQUESTS = [100 * 5, 20 * 3, 20 * 3, 5 * 2, 50 * 3]


@pytest.mark.parametrize(("line", "requests"), list(zip(RUN, REQUESTS, strict=True)))
def test_every_command_line(line: str, requests: int, emulator: Emulator, tmp_path: Path) -> None:
    for name in ("examples", "scripts", "run_model_comparison.sh"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    undrawn = " figures=[]" if requests > min(REQUESTS) else ""  # those of the shortest game are drawn
    done = typed(emulator, tmp_path, ["bash", "-c", f"{line} --overrides poll_seconds=0.05{undrawn}"])
    assert done.returncode == 0, done.stderr
    (folder,) = jobs(tmp_path)
    assert (folder / "figures").exists() == (not undrawn)
    played = json.loads((folder / "raw" / "interactions.json").read_text())
    assert sum(len(one["messages"]) for one in played) == requests
    assert not any(one["incomplete"] for one in played)
    assert paid_once(emulator, requests)
    assert "interactions in standard mode, 0 incomplete" in done.stdout


def test_the_wave_log(emulator: Emulator, tmp_path: Path) -> None:
    """The lines in the seed, apart from the seconds."""
    (line,) = (line for line in RUN if "test_conversation_batching" in line)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    done = typed(emulator, tmp_path, ["bash", "-c", line + " --overrides poll_seconds=0.05 figures=[]"])
    (shown,) = (text for language, text in BLOCKS if language == "" and text.startswith("Processing wave 1"))

    def without_seconds(text: str) -> list[str]:
        return [re.sub(r"[\d.]+ sec", "# sec", line) for line in text.splitlines()]

    told = [line for line in without_seconds(done.stdout) if re.search(r"[Ww]ave \d", line)]
    assert told == without_seconds(shown), done.stderr


def test_every_option_value_is_taken() -> None:
    """`--batch-service [default|openai|...]`: each of the values in the seed, with each of its options."""
    words = OPTIONS[0].split()[2:]
    for option, values in zip(words[::2], words[1::2], strict=True):
        for value in re.fullmatch(r"\[(.*)\]|(<\w+>)", values).group(0).strip("[]").split("|"):
            parsed = vars(build_parser(GameDefaults()).parse_args([option, "7" if value == "<number>" else value]))
            assert (value if value != "<number>" else 7) in [*parsed.values(), *(parsed["models"] or [])]
            if option == "--batch-service":
                assert value in {*SERVICES, "auto"}


def test_the_python_example(emulator: Emulator, tmp_path: Path) -> None:
    (text,) = (text for language, text in BLOCKS if language == "python")
    for theirs, ours in IMPORTS.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    done = typed(emulator, tmp_path, [warm.python(), "-c", text])
    assert done.returncode == 0, done.stderr
    (folder,) = jobs(tmp_path)
    assert done.stdout.strip().splitlines()[-1] == f"Results saved to {folder.relative_to(tmp_path)}"
    analysis = json.loads((folder / "analysis" / "analysis.json").read_text())
    assert analysis["overall"]["interactions"] == 20
    assert [row["name"] for row in analysis["agents"]] == ["Agent1", "Agent2"]
    played = json.loads((folder / "raw" / "interactions.json").read_text())
    assert {player["secret"] for one in played for player in one["players"]} == {"SECRET1", "SECRET2"}
    assert paid_once(emulator, 60)


def test_the_seeds_figures_are_all_there(emulator: Emulator, tmp_path: Path) -> None:
    """Results Analysis: the figures for each agent, and overall."""
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    done = typed(
        emulator,
        tmp_path,
        ["python", "examples/test_conversation_batching.py", "--mode", "concurrent", "--overrides", "figures=[]"],
    )
    assert done.returncode == 0, done.stderr
    analysis = json.loads((jobs(tmp_path)[0] / "analysis" / "analysis.json").read_text())
    for row in analysis["agents"]:
        assert row["interactions"] == 5
        for event in ("revealed", "obtained", "optimal"):
            assert row[event]["percent"] == pytest.approx(100 * row[event]["count"] / 5)
    overall = analysis["overall"]
    assert overall["interactions"] == 5
    for figure in ("secrets_revealed", "both", "one_sided"):
        assert {"count", "percent"} <= overall[figure].keys()
