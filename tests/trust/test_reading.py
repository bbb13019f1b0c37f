"""Looking at a third party's project runs none of its code: the table of commands in docs/trust.md, command by
command."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import build_parser, main
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import config_sha
from r2v.storage.files import write_text
from tests import trust, warm
from tests.slurm.faked import FAKE_PATH, Faked
from tests.trust.alter import hard_copy, rewrite

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "trust.md"


def rows() -> dict[str, list[str]]:
    """Return command -> the other cells of its row in the table."""
    table = re.search(r"^\| command \|.*?\n\|[-|]+\n(.*?)\n\n", PAGE.read_text(), re.M | re.S)
    assert table is not None
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table[1].splitlines()]
    return {name: row[1:] for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command with its parser."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, inner in action.choices.items():
            yield from commands(inner, f"{name} {word}".strip())


def takes(parser: argparse.ArgumentParser, option: str) -> bool:
    return any(option in action.option_strings for action in parser._actions)


ROWS = rows()
PARSERS = dict(commands(build_parser()))
READING = [name for name, cells in ROWS.items() if cells[0].startswith("no")]


def test_the_table_holds_every_command_and_each_dry_run() -> None:
    dry = {f"{name} --dry-run" for name, parser in PARSERS.items() if takes(parser, "--dry-run")}
    assert ROWS.keys() == PARSERS.keys() | dry
    assert dry <= set(READING)


@pytest.mark.parametrize("name", PARSERS)
def test_a_command_imports_and_sends_as_its_row_says(name: str) -> None:
    imports, _, sends, _ = ROWS[name]
    assert imports.startswith("no") != bool(PARSERS[name].get_default("runs_code"))
    assert sends.startswith("yes") == bool(PARSERS[name].get_default("sends_keys")), "or the registry's keys, or none"


MODULE = "evil"
EVIL = """
open("evil.mark", "a").write(__name__)

class Toy: pass

def function(*words): pass
"""
CONFIGURATION = """
env: {benchmark: "evil:Toy"}
router: {model: "evil:function"}
perturbations: {extra: {"evil:Toy": {prob: 0.5}}}
hierarchical: {problems: {checker: "evil:function"}, guidance: {reward: "evil:function"}}
"""
PAID = 'teacher: {provider: "evil:Toy", model_name: m, usd_in: 1, usd_out: 1}\n'
SWEEP = "name: s\nmode: training\nstage: evaluate\nbase_config: c.yaml\nsweep: {router.budget: [0.1]}\n"
EXPERIMENT = {"name": "s", "mode": "training", "spec": "s.yaml", "spec_sha256": "", "created_at": "2026-01-01"}
POINT = {
    "run": "run_001",
    "status": "pending",
    "config_path": "c.yaml",
    "run_dir": "x",
    "identity": "",
    "base": "c.yaml",
}
CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project in which every file that can name code names a third party's."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(REPOSITORY / "scripts/slurm", folder / "scripts/slurm")
    texts = {
        f"{MODULE}.py": EVIL,
        "c.yaml": CONFIGURATION,
        "paid.yaml": CONFIGURATION + PAID,
        "configs/evil/noisy.yaml": CONFIGURATION,
        "s.yaml": SWEEP,
        "chat.jsonl": json.dumps(CHAT) + "\n",
        "outputs/experiments/s_1/experiment.json": json.dumps({**EXPERIMENT, "runs": [POINT]}),
        "outputs/experiments/s_1/spec.yaml": SWEEP,
        "results/evil_noisy/config.yaml": CONFIGURATION,
        "results/evil_noisy/setup.json": json.dumps({"config": {"env": {"benchmark": "evil:Toy"}}}),
        "not-an-environment/file": "",
        "page/.r2v": "report\nindex.html\n",
        "page/index.html": "<h1>Evil</h1>",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    faked, name = Faked(folder), "evil.Toy_noisy"
    faked.folder.mkdir()
    write_text(chains.folder(folder, name) / "config.yaml", CONFIGURATION)
    made = replace(faked.chain(name), benchmark="evil:Toy", config_sha=config_sha(CONFIGURATION))
    chains.write(folder, replace(made, jobs={"collect": made.jobs["collect"]}))
    faked.done("100", name=name)
    faked.answer()
    return folder


CONFIG, CHAIN, RUNS = ("--config", "c.yaml"), "evil.Toy_noisy", ("run_001", "run_001")
WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("config", "stages", "plan", "run --dry-run"), CONFIG),
    "collect --dry-run": ("--config", "paid.yaml"),
    "experiments run --dry-run": ("--exp", "s.yaml"),
    **dict.fromkeys(("status", "explain", "cost", "graph", "cancel", "heal"), (CHAIN,)),
    "logs": (CHAIN, "collect"),
    "run_all --dry-run": ("evil",),
    "init": ("new", "--benchmark", "evil:Toy"),
    "import": ("chat.jsonl", "--benchmark", "evil:Toy"),
    "export": ("bundle", *CONFIG),
    "report": ("results/evil_noisy",),
    "push": ("results/evil_noisy", "evil/toy"),
    "push --dry-run": ("page", "evil/toy"),
    "pull": ("evil",),
    "cluster": ("show",),
    "completion": ("bash",),
    "providers forget": ("batch_1",),
    "experiments diff": RUNS,
    "experiments simulate": ("c.yaml", "simulated"),
    "experiments background": ("--list",),
    "swebench images": CONFIG,
    "engine serve": CONFIG,
    "game figures": ("results/evil_noisy",),
    "game analyse": ("results/evil_noisy",),
    "game label": ("results/evil_noisy",),
    "game run": ("--models", "evil:Toy"),
    "game run --dry-run": ("--models", "gpt-5.2"),
    "game power": ("--models", "gpt-5.2"),
    "engine install": ("--home", "not-an-environment"),
    "engine show": ("--home", "not-an-environment"),
    "swebench install": ("--help",),
    "webarena install": ("--help",),
}
"""The words behind a command; none for one that takes none. Commands that read no file of a project show their help."""

WHOLE = {name for name in READING if "--dry-run" in name} | {"config", "stages", "plan", "init", "import", "registry"}
"""Commands that this project lets finish."""


OUTPUT = {"init": ("new",), "export": ("bundle",), "engine install": ("not-an-environment",)}
"""The output folder that a command is given here."""
HASHES = "cache/r2v/hashes"
"""Cache that every command may write, as the page says, for a user who has none yet."""
LOCAL = {"git", "bash"}
"""Programs that contact no host."""
SLURM = {"squeue", "sacct", "sacctmgr", "sinfo", "scontrol", "sbatch", "scancel"}
_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"), 0),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink", "shutil.copyfile", "shutil.move"), 1),
}
"""Audit event -> index of the argument with the path that changes."""


@dataclass
class Effects:
    """The paths that this process writes, makes, replaces or removes, and the hosts and programs that it contacts."""

    paths: set[Path] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    watched: bool = False

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event of Python's."""
        if not self.watched:
            return
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if (event == "open" and arguments[2] & writes) or event in _CHANGES:
            path = arguments[_CHANGES.get(event, 0)]
            if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path) != os.devnull:
                self.paths.add(Path(os.fsdecode(path)).absolute())
        elif event == "socket.getaddrinfo":
            self.asked.add(str(arguments[0]))
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            self.asked.add(str(arguments[1][0]))
        elif event == "subprocess.Popen":
            self.asked.add(Path(os.fsdecode(arguments[0])).name)

    def require(self, name: str, folder: Path) -> None:
        """Compare them with the row of a command that was run in `folder`."""
        _, network, _, writes = ROWS[name]
        named = (*re.findall(r"`([^`]+)`", writes), f"{MODULE}.mark", HASHES, *OUTPUT.get(name, ()))
        allowed, temporary = [folder / path for path in named], Path(tempfile.gettempdir())
        own = {path for path in self.paths if path.is_relative_to(folder) or not path.is_relative_to(temporary)}
        assert [path for path in own if not any(_is_near(path, one) for one in allowed)] == []
        assert self.asked - LOCAL - (SLURM if "Slurm" in network else set()) == set()


def _is_near(path: Path, allowed: Path) -> bool:
    """True for an allowed path, all below it, and the folders above it."""
    return path.is_relative_to(allowed) or allowed.is_relative_to(path)


_EFFECTS = Effects()
sys.addaudithook(_EFFECTS.note)  # an audit hook cannot be removed


@contextmanager
def watched(name: str, folder: Path) -> Iterator[None]:
    """Compare the effects of the block with the row of a command."""
    _EFFECTS.paths, _EFFECTS.asked, _EFFECTS.watched = set(), set(), True
    try:
        yield
    finally:
        _EFFECTS.watched = False
    _EFFECTS.require(name, folder)


@pytest.mark.parametrize("name", READING)
def test_a_command_that_reads_runs_nothing_of_a_strangers_project(
    name: str, stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(stranger)
    monkeypatch.setenv("PATH", f"{FAKE_PATH}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", str(stranger / "slurm" / "slurm.conf"))
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
    monkeypatch.setenv("XDG_DATA_HOME", str(stranger / "user"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(stranger / "cache"))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    sys.modules.pop("evil", None)
    (stranger / "evil.mark").unlink(missing_ok=True)
    ends = pytest.raises(SystemExit) if "--help" in WORDS.get(name, ()) else nullcontext()
    with watched(name, stranger), ends:
        code = main([*name.split(), *WORDS.get(name, ())])
        out, err = capsys.readouterr()
        assert code in ((0,) if name in WHOLE else (0, 1, 2, 3, 4, 5, 10)) and "a bug of R2V" not in err, err
    assert not (stranger / "evil.mark").exists() and "evil" not in sys.modules


IMPORTING = ("collect", "run", "train_policy", "ablations", "check-env")
"""Commands that import the module at once; the others of their row lack an input first."""


@pytest.mark.parametrize("name", [*IMPORTING, "perturb", "train_router", "evaluate"])
def test_a_command_that_runs_says_so_and_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module leaves its mark here: without this test, the others would also pass for a module that cannot be
    imported."""
    module = f"evil_{name.replace('-', '_')}"  # a process announces a module once
    (tmp_path / f"{module}.py").write_text(EVIL)
    (tmp_path / "c.yaml").write_text(CONFIGURATION.replace("evil:", f"{module}:"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with watched(name, tmp_path):
        assert main([name, "--config", "c.yaml"]) == (2 if name in IMPORTING else 3)
    assert (tmp_path / "evil.mark").exists() == (name in IMPORTING)
    assert (f"={module}:" in capsys.readouterr().err.partition("importing ")[2]) == (name in IMPORTING)


READER = """
import ctypes, sys
from r2v.cli.main import main
if ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()):
    sys.exit("cannot give up the powers of root")
codes = [main(line.split()) for line in sys.argv[1:]]
sys.exit(max(codes))
"""
"""Commands of a user without access to another one's files, even for root."""
NOBODY = 65534


def test_a_finished_project_can_be_used_by_who_may_only_read_it(micro_run: Path, tmp_path: Path) -> None:
    project = hard_copy(micro_run, tmp_path / "theirs")
    for log in (project / "outputs" / ".runs").rglob("*.log"):  # a file of one's own could be written
        rewrite(log, log.read_bytes())
        log.chmod(0o444)
    folders = [project, *(path for path in project.rglob("*") if path.is_dir() and not path.is_symlink())]
    for folder in folders:
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o555)

    def entries() -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in project.rglob("*")}

    before = entries()
    commands = (
        f"run --config {trust.MICRO}",
        f"evaluate --config {trust.MICRO}",
        "status",
        "cost",
        "registry list",
        "verify-results results/micro",
        f"report results/micro --output {tmp_path / 'mine'}",
    )
    done = subprocess.run(
        [warm.python(), "-c", READER, *commands],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
        capture_output=True,
    )
    for folder in folders:
        folder.chmod(0o755)  # or only root could remove it
    assert done.returncode == 0, done.stderr
    assert "stage up to date: stage=collect" in done.stderr and (tmp_path / "mine" / "index.html").exists()
    assert entries() == before
