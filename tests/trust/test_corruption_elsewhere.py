"""Corruption of files outside the run of tests/micro.yaml: chains and their jobs' records, the Secret Game's files,
journals of paid requests, and the episodes of killed stages. Every kind x every damage x every command that reads it.

No request is paid twice, whatever is damaged, and a command that refuses a journal neither removes nor alters it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from r2v.config import load, to_yaml
from r2v.emulator import Emulator, Lifecycle
from r2v.errors import EXIT_CODES, InputError, Interrupted
from r2v.llm.waves import Waves
from r2v.pipeline.graph import upstream
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.run import run_job
from r2v.randomness import generator
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import config_sha
from r2v.slurm.job import runner
from r2v.storage.compression import line_at
from r2v.storage.files import write_json, write_text
from r2v.storage.integrity import hashed
from r2v.storage.paths import EPISODES
from r2v.storage.removal import ATTEMPT_PART, PLAYS_MARKER, remove_own
from tests import warm
from tests.emulator.clients import line, openai_client, upload
from tests.llm.talk import converse, environment, play, remote
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.trust import MICRO, drawn
from tests.trust.alter import BYTES, hard_copy
from tests.trust.kinds import ELSEWHERE, KINDS, STORE, files_of, kind
from tests.trust.test_corruption import contents, is_of_the_pipeline

REPOSITORY = Path(__file__).parents[2]
CHAIN = "desk_noisy"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of file, damaged in one way, read by one command."""

    kind: str
    how: str
    reader: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.how}-{self.reader}".replace(" ", "_")


def cases(*kinds: str) -> list[Case]:
    """Return each of these kinds x each damage x each of its readers."""
    return [Case(kind=name, how=how, reader=reader) for name in kinds for how in BYTES for reader in kind(name).readers]


def of_kind(project: Path, case: Case) -> Path:
    """Return a file of the kind, drawn by the case."""
    paths = [path for path, row in files_of(project) if row.name == case.kind]
    return generator("corrupt", str(case)).choice(paths)


def bytes_of(folder: Path) -> dict[str, bytes | None]:
    """Return every file below a folder except leases; None for a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if ".lease" not in path.as_posix()
    }


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return the exit code and output of a command typed in this process: no traceback, a documented code."""
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    assert "Traceback (most recent call last)" not in out + err, err
    assert code in EXIT_CODES, (code, err)
    return code, out + err


# Chains ---------------------------------------------------------------------------------------------------------------

CHAIN_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "status": ("status", CHAIN),
    "every status": ("status",),
    "explain": ("explain", CHAIN),
    "graph": ("graph", CHAIN),
    "cost": ("cost", CHAIN),
    "logs": ("logs", CHAIN, "collect"),
    "cancel": ("cancel", CHAIN),
    "resume": ("resume", CHAIN),
    "heal": ("heal", CHAIN, "bc"),
    "run_all": ("run_all", "desk"),
}
CHAIN_CASES = cases("chain", "chain configuration", "job record")


@pytest.fixture
def checkout(faked: Faked) -> Faked:
    """Make a checkout with two chains: the first job of one is done, its second has failed."""
    for name in ("scripts", "configs"):
        (faked.root / name).symlink_to(REPOSITORY / name)
    text = to_yaml(load("configs/desk/noisy.yaml"))
    for name, first in ((CHAIN, 100), ("other", 300)):
        made = faked.chain(name, first)
        chains.write(faked.root, replace(made, config_sha=config_sha(text)))
        write_text(chains.folder(faked.root, name) / "config.yaml", text)
    for job_id, rc, kind_ in (("100", 0, None), ("102", 3, "input"), ("104", 3, "input")):
        start = {"job": "collect", "restart": 0, "at": "2026-01-01T00:00:00+00:00", "gpus": 1, "host": "g1"}
        ended = {"rc": rc, "kind": kind_, "line": "it broke", "restart": 0, "at": "2026-01-01T00:10:00+00:00"}
        folder = job_record.record_folder(faked.root, CHAIN, job_id)
        write_json(folder / "start.json", hashed(start))
        write_json(folder / "exit.json", hashed(ended))
        write_json(folder / "error.json", hashed({"kind": kind_, "exit_code": rc, "message": "it broke"}))
        write_text(folder / "events.jsonl", '{"what":"bc","done":1,"total":2,"restart":0}\n' * 2)
        faked.accounted(job_id, "COMPLETED" if rc == 0 else "FAILED")
        write_text(faked.root / "logs" / f"collect_{job_id}.out", "it broke\n")
    faked.answer()
    return faked


def _run_job(checkout: Faked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a job of the chain, as Slurm starts it; its stage is replaced by one that ends at once."""
    monkeypatch.setenv("SLURM_JOB_ID", "900")
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(runner, "StageProcess", lambda job_start: job_start)
    monkeypatch.setattr(runner, "wait_for", lambda process: (1, None))
    capsys.readouterr()
    words = ["perturb", "--config", str(chains.folder(Path(), CHAIN) / "config.yaml")]
    code = runner.run(words, name=CHAIN, job="perturb")
    return code, capsys.readouterr().err


@pytest.mark.parametrize("case", drawn(CHAIN_CASES, 8, "corruption, chains"), ids=str)
def test_a_damaged_chain_is_named_and_no_command_acts_on_it(
    checkout: Faked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    path = of_kind(checkout.root, case)
    relative = path.relative_to(checkout.root).as_posix()
    if case.kind != "job record":
        path = chains.folder(checkout.root, CHAIN) / path.name
        relative = path.relative_to(checkout.root).as_posix()
    whole = None if case.kind != "job record" else typed(capsys, *CHAIN_COMMANDS[case.reader])
    BYTES[case.how](path)
    before = bytes_of(checkout.root / "outputs")
    if case.reader == "job of a chain":
        code, text = _run_job(checkout, capsys, monkeypatch)
    else:
        code, text = typed(capsys, *CHAIN_COMMANDS[case.reader])
    made_anew = case == Case(kind="chain", how="deleted", reader="run_all")
    if case.kind == "chain" and not made_anew:
        assert code == 3 and relative in text, text
        assert case.reader != "every status" or "other: " in text, "the other chain is shown all the same"
    elif case.kind == "chain configuration" and case.reader != "status":
        assert code == 3 and relative in text, text
    elif case.kind == "chain configuration":
        assert relative in text or case.how == "deleted", text
    elif whole is not None and path.suffix == ".json" and case.how != "deleted":
        assert relative in text, text
    after = bytes_of(checkout.root / "outputs")
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert made_anew or not {name for name in changed if "/jobs/900" not in name}
    assert made_anew or "sbatch" not in checkout.calls


# The Secret Game, and what was paid -----------------------------------------------------------------------------------

GAME = (
    "game",
    "run",
    "--models",
    "gpt35",
    "--interactions",
    "4",
    "--messages",
    "2",
    "--results",
    "results/batch_jobs",
)
GAME += ("--mode", "batch", "--overrides", "poll_seconds=0.05", "figures=[]")
COLLECT = (
    "env.options.num_tasks=12",
    "env.options.num_heldout=0",
    "data.seeds=[1]",
    "data.num_episodes=2",
    "rollout.workers=1",
    "teacher.flush_seconds=0.2",
    "teacher.poll_seconds=0.02",
    "teacher.preflight=false",
    "teacher.reconcile_after=0.2",
    "teacher.provider=openai",
    "teacher.model_name=gpt-5.2",
    "teacher.mode=batch",
)
TALKS = 3
NEVER = 1_000_000
PAID = cases(
    "game job", "game analysis", "provider journal", "witness of a journal", "batch input", "provider progress"
)


@dataclass(kw_only=True)
class Paid:
    """A project and its emulated, paid provider, as they were left."""

    project: Path
    provider: Path
    answer: str

    def copy(self, folder: Path) -> Paid:
        """Return a copy in a folder of its own."""
        shutil.copytree(self.project, folder / "project", symlinks=True)
        shutil.copytree(self.provider, folder / "provider")
        return replace(self, project=folder / "project", provider=folder / "provider")

    @contextmanager
    def serving(self, *, polls: int = 1) -> Iterator[Emulator]:
        """Serve the provider to both SDKs, with the project as the folder of commands; a batch ends after so many
        polls."""
        made = Emulator(answer=self.answer, folder=self.provider, lifecycle=Lifecycle(polls=polls))
        with pytest.MonkeyPatch.context() as patch, made as emulator:
            for name, value in environment(emulator).items():
                patch.setenv(name, value)
            patch.chdir(self.project)
            yield emulator


def _played(paid: Paid) -> None:
    with paid.serving():
        assert main(GAME) == 0


def _in_flight(paid: Paid) -> None:
    """Begin conversations and leave when their batch is made: it is paid, and its answers are unread. It cannot end
    here, or its input would be gone before the conversations are left."""
    folder = paid.project / "outputs/.provider"

    async def leaving(emulator: Emulator) -> list[str]:
        while len(emulator.ledger().bills) < TALKS or b'"created"' not in (folder / "journal.jsonl").read_bytes():
            await asyncio.sleep(0.02)
        raise Interrupted("enough is under way")

    with paid.serving(polls=NEVER) as emulator:
        waves = Waves(max_conversations=TALKS + 1)
        model = waves.model(remote("openai", folder))
        with pytest.raises(Interrupted):
            waves.run([*(partial(converse, model, n, 1) for n in range(TALKS)), partial(leaving, emulator)])
    write_json(folder / "progress.json", {})


def _collected(paid: Paid) -> None:
    """Make a run whose last episode is lost: the same command asks for it again."""
    with paid.serving():
        run_job(load(None, list(COLLECT)), job("collect"), {}, root=paid.project, force=True)
    (path,) = paid.project.glob("data/runs/*/trajectories.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


BEGUN: Mapping[str, tuple[str, Callable[[Paid], None]]] = {
    "play again": ("game", _played),
    "game analyse": ("game", _played),
    "send again": ("echo", _in_flight),
    "collect again": ("desk", _collected),
}


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Paid]:
    """Return a function that makes each reader's project, once; tests do not alter it."""
    made: dict[str, Paid] = {}

    def of(reader: str) -> Paid:
        answer, make = BEGUN[reader]
        if make.__name__ not in made:
            folder = tmp_path_factory.mktemp("paid")
            (folder / "project").mkdir()
            made[make.__name__] = Paid(project=folder / "project", provider=folder / "provider", answer=answer)
            make(made[make.__name__])
        return made[make.__name__]

    return of


def _read(reader: str, capsys: pytest.CaptureFixture[str], project: Path) -> tuple[int, str]:
    """Run the same command again; return its exit code and output."""
    if reader == "send again":
        capsys.readouterr()
        try:
            play("openai", project / "outputs/.provider", count=TALKS, turns=1)
        except InputError as error:
            return 3, str(error)
        return 0, capsys.readouterr().err
    if reader == "collect again":
        (run,) = (project / "data/runs").iterdir()
        return typed(capsys, "collect", "--run-id", run.name, "--overrides", *COLLECT)
    if reader == "game analyse":
        (folder,) = (project / "results/batch_jobs").iterdir()
        return typed(capsys, "game", "analyse", folder.relative_to(project).as_posix())
    return typed(capsys, *GAME)


REFUSED = ("provider journal", "batch input")


@pytest.mark.parametrize("case", drawn(PAID, 7, "corruption, paid"), ids=str)
def test_damage_is_named_or_mended_and_nothing_is_paid_twice(
    begun: Callable[[str], Paid], capsys: pytest.CaptureFixture[str], tmp_path: Path, case: Case
) -> None:
    paid = begun(case.reader).copy(tmp_path)
    path = of_kind(paid.project, case)
    name, content = path.relative_to(paid.project).as_posix(), path.read_bytes()
    BYTES[case.how](path)
    with paid.serving() as emulator:
        bills, before = len(emulator.ledger().bills), bytes_of(paid.project)
        code, text = _read(case.reader, capsys, paid.project)
        after, statement = bytes_of(paid.project), emulator.ledger()
    assert len(statement.bills) == bills and set(statement.paid().values()) == {1}, "paid again"
    journals = [one for one in before if "journal" in one or "provider" in one]
    if case.kind in REFUSED or (case.kind == "witness of a journal" and case.how == "folder"):
        assert code == 3 and name in text, text
        assert {one: after.get(one) for one in journals} == {one: before[one] for one in journals}
        assert after.keys() == before.keys() or case.reader != "send again"
        return
    if case.kind == "game job" and case.reader == "game analyse":
        assert code == 3 and (name in text or case.how == "deleted"), text
        assert after == before
        return
    # Derived files are made again, with the same bytes; a folder in the place of one is for the user to move.
    assert code == 0 or (case.how == "folder" and code == 5 and name in text), text
    grows = case.reader == "send again" or case.kind == "provider progress"
    assert code or grows or path.read_bytes() == content
    assert {one for one in journals if one.endswith("journal.jsonl")} <= after.keys()


def test_undamaged_nothing_is_paid_again_and_everything_is_answered(
    begun: Callable[[str], Paid], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for number, reader in enumerate(BEGUN):
        paid = begun(reader).copy(tmp_path / str(number))
        with paid.serving() as emulator:
            bills = len(emulator.ledger().bills)
            assert _read(reader, capsys, paid.project)[0] == 0
            assert len(emulator.ledger().bills) == bills > 0


PROVIDER_FILES = ("ledger.jsonl", "ledger.jsonl.witness", "batches/*.json", "files/*.json")


@pytest.mark.parametrize(
    ("pattern", "how"), drawn([(one, how) for one in PROVIDER_FILES for how in BYTES], 4, "corruption, emulator")
)
def test_the_emulator_serves_from_no_damaged_state(
    begun: Callable[[str], Paid], capsys: pytest.CaptureFixture[str], tmp_path: Path, pattern: str, how: str
) -> None:
    """Its ledger is the evidence of payments: a damaged one must not clear any."""
    paid = begun("play again").copy(tmp_path)
    if pattern.startswith("files/"):  # a run deletes its uploads
        with paid.serving() as emulator:
            upload(openai_client(emulator), [line(0)])
    path = sorted(paid.provider.glob(pattern))[-1]
    BYTES[how](path)
    before = bytes_of(paid.provider)
    if how == "deleted" and not path.name.endswith(".jsonl"):
        return  # a batch or a file that was deleted there
    if pattern.endswith(".witness") and how != "folder":
        with paid.serving() as emulator:
            assert emulator.ledger().bills
        return
    code, text = typed(capsys, "providers", "emulate", "--answer", "game", "--folder", str(paid.provider))
    assert code == 3 and str(path) in text, text
    assert bytes_of(paid.provider) == before


# Plays of stages that were killed -------------------------------------------------------------------------------------

KILLED = [case for case in cases("plays") if case.reader.removeprefix("job ") in {row.name for row in JOBS}]


def unsettled(project: Path, attempt: Path) -> Path:
    """Restore the episode files of a finished attempt to their state during the run: lines of a block's file."""
    folder = project / EPISODES / attempt.name
    published = json.loads((folder / "published.json").read_text())["plays"]
    lines = [
        play_bytes(key, [[kind, json.loads(line_at(attempt / file, offset))] for kind, file, offset, _ in records])
        for key, records in published.items()
    ]
    kept = (folder / "kept.jsonl").read_bytes() if (folder / "kept.jsonl").exists() else b""
    for path in folder.iterdir():
        if path.name != PLAYS_MARKER.file:
            path.unlink()
    (folder / "plays-0000.jsonl").write_bytes(b"".join(lines) + kept)
    return folder / "plays-0000.jsonl"


def play_bytes(key: str, records: list[Any]) -> bytes:
    """Return a line of a play whose records are plain."""
    body = json.dumps({"key": key, "fault": False, "records": records}, ensure_ascii=False, separators=(",", ":"))
    text = body[1:-1].encode()
    return b'{"sha256":"%s",%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


@pytest.mark.parametrize("case", drawn(KILLED, 1, "corruption, plays"), ids=str)
def test_a_killed_stage_with_damaged_plays_makes_the_same_content(micro_run: Path, tmp_path: Path, case: Case) -> None:
    project = hard_copy(micro_run, tmp_path / "project")
    expected, made = contents(project), case.reader.removeprefix("job ")
    attempts = sorted((project / STORE).glob(f"{made}-*/attempt.meta.json"))
    attempt = next(path.parent for path in attempts if is_of_the_pipeline(project, path))
    if not (project / EPISODES / attempt.name).is_dir():
        pytest.skip("this stage of tests/micro.yaml plays nothing")
    plays = unsettled(project, attempt)
    for path in attempt.iterdir():  # a killed stage leaves no result
        if path.name not in ("attempt.meta.json", "config.yaml"):
            remove_own(path, ATTEMPT_PART)
    BYTES[case.how](plays)
    wanted = {made} | upstream([made])
    without = [row.name for row in JOBS if row.name not in wanted and row.enabled(load(str(MICRO)))]
    done = warm.run(project, "run", "--config", str(MICRO), *(["--without", *without] if without else []))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert contents(project) == expected
    if case.how not in ("deleted", "emptied", "truncated"):  # a kill leaves half a line
        assert plays.name in done.stderr, "the damage is named"


def test_no_command_that_makes_anew_or_removes_takes_a_journal(
    micro_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every artifact, published or not, whole, damaged, forced or unfinished: the paid answers are still there."""
    project = hard_copy(micro_run, tmp_path / "project")
    monkeypatch.chdir(project)
    artifacts = sorted(path for path in (project / STORE).iterdir() if path.is_dir())
    (unfinished,) = (path for path in artifacts if path.name.startswith("candidates-"))
    (unfinished / "artifact.json").unlink()
    for link in (*project.glob("data/**/candidates"), *project.glob("data/candidates/*")):
        link.unlink(missing_ok=True)
    for folder in artifacts:
        for place in (".provider/model", ".provider-20260101"):
            write_text(folder / place / "journal.jsonl", f"{folder.name} {place}\n")

    def kept() -> list[str]:
        return sorted(path.read_text() for path in (project / STORE).glob("*/.provider*/**/journal.jsonl"))

    paid = kept()
    assert len(paid) == 2 * len(artifacts) > 20
    (perturbed,) = (path for path in artifacts if path.name.startswith("perturb-"))
    BYTES["bit flip"](perturbed / "trajectories.jsonl")
    for words in (
        ("perturb", "--config", str(MICRO)),
        ("perturb", "--config", str(MICRO), "--force"),
        ("gc", "--dry-run"),
        ("gc",),
        ("gc", "--unfinished"),
    ):
        code, text = typed(capsys, *words)
        assert code == 0, text
        assert kept() == paid, words


# The table ------------------------------------------------------------------------------------------------------------

TRIED_ELSEWHERE = {
    "served traffic": "tests/serve/accounts/test_traffic.py",
    "served session": "tests/serve/accounts/test_traffic.py",
    "keys of a server": "tests/serve/accounts/test_traffic.py",
    "pilot figures": "tests/pipeline/test_pilot.py",
    "address of a teacher's server": "written anew every few seconds; tests/llm/engines/test_teacher.py",
    "configuration of a teacher's job": "written by whoever submits it; tests/slurm/job/test_teacher_job.py",
    "submissions of a teacher's job": "damaged, it counts none; tests/slurm/job/test_teacher_job.py",
    "hours of a teacher's job": "a file that cannot be read is left out; tests/llm/engines/test_teacher.py",
    "pilot page": "read by people alone",
    "page of records": "content of an artifact: hashed like all of it, tests/storage/test_integrity.py",
    "pilot episodes": "content of an artifact: hashed like all of it, tests/storage/test_integrity.py",
    "experiment record": "tests/experiments/test_records.py",
    "configuration of a run": "written anew by who runs it; read by the run itself",
    "figures of a run": "tests/experiments/test_metrics.py",
    "comparison of an experiment": "written, and read by people",
    "decisions of early stopping": "tests/experiments/schedule/test_asha.py",
    "background record": "tests/experiments/schedule/test_background.py",
    "lines set aside": "written, and read by nobody",
    "run elsewhere": "a link; tests/data/test_registry.py",
    "run index journal": "tests/data/test_registry.py",
    "places elsewhere": "tests/pipeline/test_gc.py",
    "judge replies": "tests/stages/test_train_verifier.py",
    "metrics series": "content of an artifact: hashed like all of it, tests/storage/test_integrity.py",
    "task states": "content of an artifact; in an attempt, tests/hrl/rollout/test_task_rollout.py",
    "replay buffer": "tests/hrl/training",
    "game figure": "a picture, for people",
    "report page": "for people, made again by one command",
    "report figure": "a picture, for people",
    "game labels": "tests/cli/game/test_labels.py",
    "counts of a benchmark": "tests/pipeline/plan/test_recorded.py",
    "measured memory": "tests/memory/test_store.py",
    "recorded traffic": "read by `r2v webarena regrade`; tests/envs/webarena",
    "changed sites": "a mark whose being there is all; tests/envs/webarena",
    "ledger entry": "tests/llm/providers/spending/test_project.py",
    "cap of the project": "tests/cli/test_journals.py",
    "index of a journal": "tests/llm/providers/spending/test_journal_view.py",
    "change of the ledger": "read for being new; tests/llm/providers/spending/test_project.py",
    "merge record": "written, and read by nobody",
    "submission": "the script that sbatch was given, and the end of its job for submitit: R2V reads neither",
    "code snapshot": "tests/slurm/chain/test_snapshot.py",
    "bundle manifest": "tests/serve/bundle/test_manifest.py",
    "bundle content": "tests/serve/bundle/test_manifest.py",
    "case index": "content of an artifact, and tests/router/test_case_support.py",
    "log": "text for people",
}


def test_every_kind_that_the_micro_run_lacks_is_damaged_here_or_named_with_its_reason() -> None:
    here = {case.kind for case in (*CHAIN_CASES, *PAID)}
    assert here | TRIED_ELSEWHERE.keys() == ELSEWHERE and not here & TRIED_ELSEWHERE.keys()


def test_every_reader_of_these_kinds_is_a_command_here() -> None:
    known = {*CHAIN_COMMANDS, "job of a chain", *BEGUN, *(f"job {row.name}" for row in JOBS)}
    tried = {case.kind for case in (*CHAIN_CASES, *PAID, *KILLED)}
    assert {reader for row in KINDS if row.name in tried for reader in row.readers} <= known
    assert all(row.readers for row in KINDS if row.name in tried)
