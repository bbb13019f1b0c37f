"""Help in groups and shell completion: bash itself completes commands, options, choices and files."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from r2v.cli.groups import EVERYDAY, GROUPS, SHELLS, _commands, add_completion, print_script
from r2v.cli.main import build_parser, main

REPOSITORY = Path(__file__).parents[2]


def test_every_command_is_listed_once() -> None:
    shown = [action.dest for action in _commands(build_parser())._choices_actions]
    listed = Counter([*EVERYDAY, *(name for _, names in GROUPS.values() for name in names)])
    assert set(listed) == set(shown) and max(listed.values()) == 1 and len(EVERYDAY) <= 15


def test_the_help_lists_the_commands_of_every_day(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    listed = [line.split()[0] for line in told.splitlines() if line.startswith("    ") and line[4:5].strip()]
    assert listed == list(EVERYDAY) and "r2v help" not in told.partition("commands:")[0]


def test_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list(GROUPS)
    for name, (about, names) in GROUPS.items():
        assert main(["help", name]) == 0
        told = capsys.readouterr().out
        assert told.startswith(about) and all(f"\n  {one}" in told for one in names)
    assert main(["help", "nothing"]) == 2


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return build_parser()


def completed(script: str, *words: str, folder: Path) -> set[str]:
    """Return bash's completions of the last word, in a folder."""
    (folder / "r2v.bash").write_text(script)
    program = """
        source ./r2v.bash
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        function=$(complete -p r2v | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        "$function" r2v "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" 2>/dev/null
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", program, "bash", "r2v", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_choices_and_files(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert print_script(parser, "bash") == 0
    script = capsys.readouterr().out
    (tmp_path / "my_config.yaml").touch()
    assert completed(script, "coll", folder=tmp_path) == {"collect"}
    assert {"--batch-service", "--batch-size"} <= completed(script, "game", "run", "--batch", folder=tmp_path)
    assert completed(script, "game", "run", "--game-mode", "ta", folder=tmp_path) == {"targeted"}
    assert completed(script, "run", "--config", "my_", folder=tmp_path) == {"my_config.yaml"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(
    shell: str, parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_script(parser, shell) == 0
    script = capsys.readouterr().out
    assert "train_policy" in script and "targeted" in script


def test_the_command_takes_a_shell_and_no_other_word() -> None:
    parser = argparse.ArgumentParser(prog="r2v")
    add_completion(parser.add_subparsers(), parser)
    assert parser.parse_args(["completion", "zsh"]).shell == "zsh"
    with pytest.raises(SystemExit):
        parser.parse_args(["completion", "cmd"])


def test_describing_the_command_line_loads_no_generator_of_scripts() -> None:
    program = "import sys; from r2v.cli.main import build_parser; build_parser(); print('shtab' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(REPOSITORY)}
    )
    assert done.stdout.strip() == "False"
