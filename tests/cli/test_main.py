"""The `r2v` command in a shell: an exit code, one line on stderr, and never a traceback."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from r2v import __version__
from r2v.cli.main import build_parser, main, stage_parser
from r2v.cli.options import load_config
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes
from r2v.errors import UsageError
from r2v.pipeline.jobs import COMMANDS
from r2v.pipeline.rows import Command
from r2v.storage.lease import lease
from tests import warm

REPOSITORY = Path(__file__).parents[2]
SMALL = [
    "env.benchmark=chain",
    "env.options={num_tasks: 40, length: 3, p_easy: 0.9}",
    "data.seeds=[1]",
    "perturb.constructions=[annotate,insert]",
]

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*words: str) -> list[str]:
    return [warm.python(), "-m", "r2v", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def r2v(tmp_path: Path) -> Shell:
    """Run a command in an empty folder."""

    def run(*words: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, *command(*words)], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
        )

    return run


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """Require this exit code, and these words in R2V's last line on stderr, without a traceback before it."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("r2v: ")
    for word in words:
        assert word in lines[-1]


USAGE = {
    "unknown command": (["colect"], "no colect; did you mean collect?"),
    "unknown option": (
        ["collect", "--sedes", "1"],
        "unrecognized arguments: --sedes 1; did you mean --seeds?; see `r2v collect --help`",
    ),
    "an option of none": (["plan", "--optimizer", "x"], "unrecognized arguments: --optimizer x; see `r2v plan --help`"),
    "unknown phase": (["train_policy", "--stage", "bcc"], "no bcc; did you mean bc?"),
    "an unknown key": (["config", "--overrides", "policy.lorar=32"], "did you mean policy.lora_r?"),
    "wrong type": (["config", "--overrides", "training.lr=fast"], "training.lr: Value 'fast'"),
    "not YAML": (["config", "--overrides", "data.runs=[a"], "not YAML"),
    "no such file": (["evaluate", "--config", "none.yaml"], "--config none.yaml: no such file"),
    "unknown job": (["run", "--without", "ablatoins"], "no job ablatoins; did you mean ablations?"),
    "unknown benchmark": (["collect", "--overrides", "env.benchmark=desc"], "did you mean desk?"),
}


@pytest.mark.parametrize("name", USAGE)
def test_usage_is_2_in_one_line(name: str, r2v: Shell, tmp_path: Path) -> None:
    words, said = USAGE[name]
    done = r2v(*words)
    refused(done, 2, said)
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing is written for a command that cannot be"


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert (bare.out, bare.err) == (capsys.readouterr().out, "") and "exit codes: 0 ok" in bare.out


INPUT = {
    "before its inputs": (["train_router"], "needs router_features: data/router_features/desk_noisy: missing"),
    "no run yet": (["perturb"], "no done run of desk"),
    "no trajectories": (["train_policy", "--stage", "bc", "--trajectories", "none.jsonl"], "none.jsonl: no such file"),
    "no checkpoint": (["train_policy", "--resume", "none"], "--resume none: no such checkpoint"),
}


@pytest.mark.parametrize("name", INPUT)
def test_a_missing_input_is_3(name: str, r2v: Shell) -> None:
    words, said = INPUT[name]
    refused(r2v(*words), 3, said)


@pytest.mark.parametrize("command", ["verify-results", "report"])
def test_a_folder_of_anything_else_is_not_a_results_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert main([command, str(tmp_path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"r2v: {tmp_path}: not a results folder (no setup.json, no structured_results); name one ")
    assert main([command, str(tmp_path / "nowhere")]) == 3
    assert "nowhere: no such folder of results" in capsys.readouterr().err
    assert main([command, str(tmp_path / "link")]) == 3
    assert "link: a link to nowhere, which is not there; copy results by `cp -aL`" in capsys.readouterr().err


def test_the_command_that_makes_a_missing_input_can_be_typed_as_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my file.yaml").write_text("prefix: mine\n")
    options = ["--config", "my file.yaml", "--overrides", "seed=2", "router.features=[progress]"]
    words = ["evaluate", *options]
    named = []
    while words[0] != "collect":
        assert main(words) == 3
        line = capsys.readouterr().err.splitlines()[-1]
        words = shlex.split(line.partition(": run `r2v ")[2].removesuffix("`"))
        named.append(words[: words.index("--config")])
        assert words[words.index("--config") :] == options, line
    assert named[0] == ["train_router"] and named[-3:] == [["train_policy", "--stage", "bc"], ["perturb"], ["collect"]]


def test_a_truncated_trajectories_file_is_3_with_its_line(r2v: Shell, tmp_path: Path) -> None:
    assert r2v("collect", "--overrides", *SMALL).returncode == 0
    [run] = DataRegistry(tmp_path / "data").query()
    lines = (run.output_dir / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
    cut = tmp_path / "merged.jsonl"
    cut.write_bytes(b"".join([*lines[:2], lines[2][:50] + b"\n", *lines[3:5]]))
    before = cut.read_bytes()
    done = r2v("train_policy", "--stage", "bc", "--trajectories", "merged.jsonl", "--overrides", *SMALL)
    refused(done, 3, "merged.jsonl", ":3")
    assert cut.read_bytes() == before, "nothing of it is lost"


def test_an_empty_result_is_4(r2v: Shell) -> None:
    done = r2v("collect", "--overrides", *SMALL, "env.options.p_easy=0.0")
    refused(done, 4, "none of", "episodes succeeded")


def test_a_full_disk_is_5_and_what_was_there_is_kept(r2v: Shell, tmp_path: Path) -> None:
    """A file may not grow beyond 24 KiB: the disk refuses in the middle of the run, which is resumed later."""
    words = ["collect", "--overrides", *SMALL]
    refused(r2v(*words, prefix=["bash", "-c", 'ulimit -f 24; exec "$@"', "bash"]), 5, "cannot write", "File too large")
    [run] = DataRegistry(tmp_path / "data").query()
    kept = (run.output_dir / "trajectories.jsonl").read_bytes().count(b"\n")
    assert kept > 0
    done = r2v(*words)
    assert done.returncode == 0 and f"collection resumed: stored={kept}/" in done.stderr
    [again] = DataRegistry(tmp_path / "data").query()
    assert (again.run_id, again.status) == (run.run_id, "done")


def test_held_is_6_and_names_the_holder(r2v: Shell, tmp_path: Path) -> None:
    assert r2v("collect", "--overrides", *SMALL).returncode == 0
    [run] = DataRegistry(tmp_path / "data").query()
    with lease(run.output_dir / "trajectories.jsonl.lease"):
        done = r2v("collect", "--run-id", run.run_id, "--overrides", *SMALL)
    refused(done, 6, f"held by pid {os.getpid()}", f"kill {os.getpid()}")


def test_a_signal_is_75_and_the_same_command_continues(r2v: Shell, tmp_path: Path) -> None:
    words = ["collect", "--overrides", *SMALL, "env.options.num_tasks=150", "env.options.length=12"]
    with subprocess.Popen(command(*words), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as one:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size > 4000 for path in tmp_path.glob("data/runs/*/trajectories.jsonl")):
            assert one.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        one.send_signal(signal.SIGTERM)
        _, said = one.communicate(timeout=60)
    assert one.returncode == 75, said
    assert said.splitlines()[-1] == "r2v: interrupted; the same command continues where this one stopped"
    assert "Traceback" not in said
    [run] = DataRegistry(tmp_path / "data").query()
    assert run.status == "partial"
    done = r2v(*words)
    assert done.returncode == 0 and "collection resumed" in done.stderr
    [again] = DataRegistry(tmp_path / "data").query()
    assert (again.run_id, again.status) == (run.run_id, "done")
    ids = [episode.episode_id for episode in list(StoredEpisodes(again.output_dir / "trajectories.jsonl"))]
    assert len(ids) == len(set(ids)) == again.n_episodes > run.n_episodes > 0


def test_a_closed_pipe_is_no_error(r2v: Shell, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "bash", *command("config")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_help_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In an interpreter of its own."""
    typed = [sys.executable, "-m", "r2v"]
    done, version = (
        subprocess.run([*typed, word], cwd=tmp_path, env=environment(), capture_output=True, text=True)
        for word in ("--help", "--version")
    )
    assert done.returncode == 0 and done.stderr == "" and "r2v run --help" in done.stdout
    assert main(["help", "stages"]) == 0
    told = capsys.readouterr().out
    for stage in COMMANDS:
        assert f"  {stage.name}" in told and stage.help in " ".join(told.split())
    assert version.stdout == f"r2v {__version__}\n"


def test_the_printed_configuration_is_one(r2v: Shell, tmp_path: Path) -> None:
    printed = r2v("config", "--overrides", "seed=7", "training.lr=1e-5", "training.num_epochs=5").stdout
    (tmp_path / "again.yaml").write_text(printed)
    assert r2v("config", "--config", "again.yaml").stdout == printed
    assert "seed: 7\n" in printed and "  lr: 1.0e-05\n" in printed


ALIASES = [
    (["collect", "--num-episodes", "50", "--seeds", "1", "2", "3"], "data.num_episodes=50", "data.seeds=[1,2,3]"),
    (["collect", "--seeds", "1 2 3"], "data.seeds=[1,2,3]"),
    (["collect", "--run-tags", "v1", "007", "true"], "run.tags=['v1','007','true']"),
    (["collect", "--notes", 'half: "quoted", # 100 %'], """run.notes='half: "quoted", # 100 %'"""),
    (["collect", "--notes", "1e3"], "run.notes='1e3'"),
    (
        ["evaluate", "--methods", "r2v", "slm_only", "--overrides", "evaluation.num_tasks=4"],
        "evaluation.methods=[r2v,slm_only]",
        "evaluation.num_tasks=4",
    ),
    (["ablations", "--names", "no_dpo"], "ablations.names=[no_dpo]"),
    (["evaluate", "--seeds", "3", "--overrides", "evaluation.seeds=[4]"], "evaluation.seeds=[4]"),
    (["evaluate", "--overrides", "seed=4", "--overrides", "router.l2=2"], "seed=4", "router.l2=2"),
]


@pytest.mark.parametrize("words", ALIASES, ids=[" ".join(row[0]) for row in ALIASES])
def test_a_flag_is_another_spelling_of_a_key(words: tuple[list[str], str]) -> None:
    flags, *overrides = words
    said, meant = build_parser().parse_args(flags), build_parser().parse_args(["config", "--overrides", *overrides])
    assert load_config(said) == load_config(meant)


def test_the_scripts_are_the_same_door(tmp_path: Path) -> None:
    """scripts/collect_trajectories.py is `r2v collect`, and --output is the folder the run is made in."""
    done = subprocess.run(
        [
            sys.executable,
            str(REPOSITORY / "scripts" / "collect_trajectories.py"),
            "--output",
            "elsewhere",
            "--run-tags",
            "seed",
            "--overrides",
            *SMALL,
            "env.options.num_tasks=15",
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    [manifest] = tmp_path.glob("elsewhere/*/run_manifest.json")
    assert json.loads(manifest.read_text())["tags"] == ["seed"]
    assert f"Run ID : {manifest.parent.name}" in done.stderr


def _options(parser: argparse.ArgumentParser, name: str = "r2v") -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command_parser in action.choices.items():
                yield from _options(command_parser, f"{name} {word}")
        elif action.help != argparse.SUPPRESS:
            yield f"{name} {' '.join(action.option_strings) or action.dest}", action


def _said_too_little(action: argparse.Action) -> str:
    """Return the fault of an option's help; "" if it has none."""
    if not action.help:
        return "no help"
    if action.nargs == 0 or not action.option_strings:
        return ""
    if action.choices is None and not action.metavar:
        return "a metavar of argparse's own making"
    if "." in str(action.metavar or "").replace("...", ""):
        return "a raw key for a metavar"
    return "" if action.required or "default" in action.help else "no default named"


def test_every_option_says_what_it_means_and_what_it_is_without_it() -> None:
    options = dict(_options(build_parser()))
    assert {name: fault for name, action in options.items() if (fault := _said_too_little(action))} == {}
    assert len(options) > 200


def _counted(parser: argparse.ArgumentParser) -> int:
    """Return the number of options of a parser and its commands, hidden ones too, without --help."""
    count = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            count += sum(map(_counted, {id(one): one for one in action.choices.values()}.values()))
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            count += 1
    return count


def test_there_are_at_most_240_options() -> None:
    """Configuration keys need no options: --overrides sets them."""
    assert _counted(build_parser()) <= 240


@pytest.mark.parametrize("words", [["evaluate", "--seed", "3"], ["collect", "--num", "3"], ["run", "--dry"]])
def test_the_beginning_of_an_option_is_none(words: list[str]) -> None:
    with pytest.raises(UsageError, match="unrecognized arguments"):
        build_parser().parse_args(words)


def test_a_variable_is_allowed_before_and_behind_a_command_that_sends_keys() -> None:
    for words in (["--allow-env", "LAB_SECRET", "collect"], ["collect", "--allow-env=LAB_SECRET", "--force"]):
        assert build_parser().parse_args(words).allow_env == ["LAB_SECRET"]
    with pytest.raises(UsageError, match="--allow-env LAB_SECRET: this command sends no key"):
        build_parser().parse_args(["config", "--allow-env", "LAB_SECRET"])
    for words in (["collect", "--allow-env", "sk-abcdef"], ["collect", "--allow-env"]):
        with pytest.raises(UsageError, match="must be the name of an environment variable") as refused:
            build_parser().parse_args(words)
        assert "sk-abcdef" not in str(refused.value)
    assert build_parser().parse_args(["record", "--", "x", "--allow-env", "y"]).allow_env == []


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_a_stage_reads_its_line_as_the_whole_command_line_does(row: Command) -> None:
    words = [row.name, "--config", "x.yaml", "--overrides", "seed=3", "--force"]
    assert vars(stage_parser().parse_args(words)) == vars(build_parser().parse_args(words))


TYPED = {"cpu_partition", "train_policy", "game_judge", "claude_opus", "claude_sonnet", "claude_haiku", "gpt4o_mini"}
TYPED |= {"gpt4_turbo", "api_key_env", "run_003", "run_007"}
"""Values and one setting with an underscore, which a user types unchanged."""


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _helps(below)
        elif action.help and action.help != argparse.SUPPRESS:
            yield action.help


def test_help_shows_words_and_no_raw_keys() -> None:
    plain = (re.sub(r"`[^`]*`|[\w./]+[./=(:][\w./:]*", "", text) for text in _helps(build_parser()))
    keys = {word for text in plain for word in re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", text)}
    assert keys <= TYPED, sorted(keys - TYPED)
