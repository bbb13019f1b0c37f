"""Corruption: every kind of file x every damage x every command that reads it.

No traceback, a documented exit code, the damage named or repaired, nothing else touched, and the same content
afterwards. The cases are generated from the table of kinds; each runs on a copy of one finished run, in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.errors import EXIT_CODES
from r2v.pipeline.graph import upstream
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.plan.jobs_to_do import plan
from r2v.randomness import generator
from r2v.storage.files import content_sha256
from tests import warm
from tests.trust import MICRO, drawn
from tests.trust.alter import BYTES, LINKS, hard_copy
from tests.trust.kinds import KINDS, STORE, FileKind, files_of, kind, kind_of

REPOSITORY = Path(__file__).parents[2]
IN_A_RUN = tuple(row for row in KINDS if row.in_micro_run)
READERS = {
    "plan": ("run_all", "--config", str(MICRO), "--dry-run"),
    "verify-results": ("verify-results", "results/micro"),
    "registry": ("registry",),
    "status": ("status",),
    "resume": ("train_policy", "--resume", "outputs/micro/policy/bc/checkpoint-latest"),
}
"""Commands that only read, by their word in the ids of the cases."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of file, damaged in one way, read by one command."""

    kind: str
    how: str
    reader: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.how}-{self.reader}".replace(" ", "_")


def _damages(row: FileKind) -> tuple[str, ...]:
    return tuple(LINKS if row.form == "link" else BYTES)


RESUMED = ("attempt", "latest checkpoint", "published link")


def _reads(reader: str, row: FileKind) -> bool:
    """True if a command is tested on a kind: cheap commands are tested on every kind."""
    if reader == "resume":
        return row.name in RESUMED
    return reader != "verify-results" or reader in row.readers


READING = [
    Case(kind=row.name, how=how, reader=reader)
    for row in IN_A_RUN
    for how in _damages(row)
    for reader in READERS
    if _reads(reader, row)
]
STAGES = [
    Case(kind=row.name, how=how, reader=reader)
    for row in IN_A_RUN
    for how in _damages(row)
    for reader in row.readers
    if reader.startswith("job ") and row.damage not in ("ignored", "paid")
]
MENDING = [Case(kind=row.name, how=how, reader="run") for row in IN_A_RUN for how in _damages(row)]


@pytest.fixture
def project(micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the finished run; commands are typed in the copy."""
    copy = hard_copy(micro_run, tmp_path / "project")
    for name in ("scripts", "configs"):
        (copy / name).symlink_to(REPOSITORY / name)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copy


def r2v(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command typed in this process; an exception that leaves it counts as a
    traceback, as does a printed one."""
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    assert "Traceback (most recent call last)" not in out + err, err
    assert code in EXIT_CODES, (code, err)
    return code, out + err


def damaged(project: Path, case: Case) -> tuple[Path, bool]:
    """Damage a file of the kind, drawn by the case; return it, and True if its content has changed."""
    row = kind(case.kind)
    paths = [path for path, found in files_of(project) if found is row and is_of_the_pipeline(project, path)]
    path = generator("corrupt", str(case)).choice(paths)
    if row.form == "link":
        LINKS[case.how](path)
        return path, True
    before = content_sha256(path)
    BYTES[case.how](path)
    return path, not path.is_file() or content_sha256(path) != before


def is_of_the_pipeline(project: Path, path: Path) -> bool:
    """True if a file is the run's own, or lies in a published artifact: ablations keep some unpublished ones."""
    relative = path.relative_to(project).as_posix()
    if not relative.startswith(f"{STORE}/"):
        return True
    folder = project / STORE / relative.split("/")[2]
    return folder.name.startswith("collect-") or any(
        link.resolve() == folder for room in ("data", "outputs", "results") for link in _links(project / room)
    )


def _links(room: Path) -> Iterator[Path]:
    for path in room.rglob("*"):
        if path.is_symlink() and STORE not in path.as_posix():
            yield path


def snapshot(project: Path) -> dict[str, tuple[int, int]]:
    """Return inode and mtime of every file, which a command that only reads leaves unchanged."""
    found = {}
    for room in ("data", "outputs", "results"):
        for path in (project / room).rglob("*"):
            if not path.is_dir() or path.is_symlink():
                status = path.lstat()
                found[path.relative_to(project).as_posix()] = (status.st_ino, status.st_mtime_ns)
    return found


def contents(project: Path) -> dict[str, dict[str, str]]:
    """Return every artifact's content hashes, as recorded."""
    found = sorted((project / STORE).glob("*/artifact.json"))
    return {path.parent.name: json.loads(path.read_text())["files"] for path in found}


def names(text: str, path: Path, project: Path) -> bool:
    """True if a command's output names a file."""
    return path.relative_to(project).as_posix() in text or str(path.resolve()) in text


def job_of(path: Path, project: Path) -> str | None:
    """Return the job whose artifact a file lies in."""
    parts = path.relative_to(project).parts
    return parts[2].rpartition("-")[0] if parts[:2] == tuple(STORE.split("/")) else None


@pytest.mark.parametrize("case", drawn(READING, 20, "corruption, reading"), ids=str)
def test_commands_that_read_name_damage_and_touch_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], case: Case
) -> None:
    whole = 0 if case.reader in ("plan", "registry") else r2v(capsys, *READERS[case.reader])[0]
    path, altered = damaged(project, case)
    before, row = snapshot(project), kind(case.kind)
    code, text = r2v(capsys, *READERS[case.reader])
    assert snapshot(project) == before or case.reader == "resume"
    if case.reader == "plan" and altered and row.damage == "remade":
        unfinished = path.name == "artifact.json" and case.how == "deleted"
        assert code == 0 and ("to do" if unfinished else "stale") in text, text
        assert unfinished or names(text, path, project), text
    elif case.reader == "verify-results" and altered and row.content and job_of(path, project) == "evaluate":
        assert code == 3, text
    elif case.reader in ("status", "registry", "plan") and row.damage in ("ignored", "refused"):
        assert code == whole, text


@pytest.mark.parametrize("case", drawn(STAGES, 8, "corruption, stages"), ids=str)
def test_a_stage_refuses_a_damaged_input_with_the_remedy(
    project: Path, capsys: pytest.CaptureFixture[str], case: Case
) -> None:
    reader = job(case.reader.removeprefix("job "))
    path, altered = damaged(project, case)
    made = job_of(path, project)
    if not altered or (made is not None and made not in reader.inputs):
        pytest.skip("not read by this stage, or nothing that counts was altered")
    before = snapshot(project)
    code, text = r2v(capsys, *reader.argv, "--config", str(MICRO))
    assert code == 3, text
    assert names(text, path, project), text
    assert any(words in text for words in ("`r2v ", "restore it", "put it back")), "the remedy"
    assert snapshot(project) == before, "nothing was done"


@pytest.mark.parametrize("case", drawn(MENDING, 3, "corruption, mending"), ids=str)
def test_a_run_names_damage_and_mends_it_to_the_same_content(project: Path, case: Case) -> None:
    config, expected = load(str(MICRO)), contents(project)
    path, altered = damaged(project, case)
    made, row = job_of(path, project), kind(case.kind)
    wanted = {made} | upstream([made]) if made else {row.name for row in JOBS if row.name != "hierarchical"}
    without = [item.name for item in JOBS if item.name not in wanted and item.enabled(config)]
    # In a process of its own: settings of torch from earlier tests could change a remade model's last bits.
    done = warm.run(project, "run", "--config", str(MICRO), *(["--without", *without] if without else []))
    code, text = done.returncode, done.stdout + done.stderr
    assert "Traceback (most recent call last)" not in text and code in EXIT_CODES, text
    if (
        row.damage == "refused"
        or (row.damage == "quarantined" and code == 3)
        or (case.how in ("file", "folder") and row.form == "link")
    ):
        assert code in (0, 3) and (code == 0 or names(text, path, project)), text
        return
    assert code == 0, text
    if altered and row.damage == "remade":
        gone = case.how == "deleted" and path.name == "artifact.json"
        assert gone or names(text, path, project), text
    assert contents(project) == expected
    left = {step.job.name: step.why for step in plan(config, root=project) if step.state != "up to date"}
    assert left == {}


@pytest.mark.parametrize("reader", ["plan", "registry", "run"])
def test_strangers_in_the_store_stop_nobody(project: Path, capsys: pytest.CaptureFixture[str], reader: str) -> None:
    store = project / STORE
    (store / ".DS_Store").write_bytes(b"\0")
    (store / "notes").write_text("a stranger's")
    (store / "bc-0123456789abcdef").write_text("no folder")
    (store / "junk" / "deep").mkdir(parents=True)
    (store / "bc-fedcba9876543210").symlink_to("nowhere")
    (store / "evaluate-0000000000000000").mkdir()
    (store / "evaluate-0000000000000000" / "artifact.json").write_text("{")
    words = READERS.get(reader, ("run", "--config", str(MICRO)))
    code, text = r2v(capsys, *words)
    assert code == 0, text
    if reader == "run":
        assert text.count("up to date") == 10


def test_each_kind_of_a_run_is_damaged_somewhere(micro_run: Path) -> None:
    present = {kind_of(path.relative_to(micro_run).as_posix()).name for path, _ in files_of(micro_run)}
    assert present == {row.name for row in IN_A_RUN}
    assert {case.kind for case in READING} == present and len(READING) + len(STAGES) + len(MENDING) > 1000
    assert os.path.lexists(micro_run / "results" / "micro")
