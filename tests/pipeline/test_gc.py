"""Garbage collection removes unreferenced artifacts, and nothing that was paid for, made by hand or is in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.pipeline.gc import garbage, remove
from r2v.pipeline.plan.jobs_to_do import plan
from r2v.storage.artifact import ATTEMPT, JOURNAL, build, publish
from r2v.storage.lease import lease
from r2v.storage.removal import PLAYS_MARKER, make_own
from tests.trust import MICRO
from tests.trust.alter import hard_copy

KEYS = [f"{number:016x}" for number in range(9)]


def made(root: Path, job: str, key: str, inputs: dict[str, str] | None = None, summary: str = "") -> Path:
    """Make a finished artifact with a checkpoint of 1000 bytes."""
    store = root / "outputs" / ".artifacts"
    with build(store, job, key, "m:S", "seed: 1\n", {}, root) as work:
        (work.folder / "data.jsonl").write_text("{}\n")
        (work.folder / "checkpoint-3").mkdir()
        (work.folder / "checkpoint-3" / "state.pt").write_bytes(b"\0" * 1000)
        work.summary.update(artifacts=[summary])
    if inputs is not None:
        (work.folder / "attempt.meta.json").write_text(json.dumps(inputs))
    return work.folder


def gone(root: Path, **options: bool) -> dict[str, bool]:
    """Return name -> True if only leftovers go."""
    return {item.folder.name: item.leftovers for item in garbage(root, **options)}


def test_what_a_place_points_at_is_kept_and_all_that_it_was_made_of(tmp_path: Path) -> None:
    first = made(tmp_path, "perturb", KEYS[0])
    second = made(tmp_path, "bc", KEYS[1], inputs={"perturb": f"../{first.name}"})
    played = made(tmp_path, "evaluate", KEYS[2])
    study = made(tmp_path, "ablations", KEYS[3], summary=played.name)
    named = made(tmp_path, "hierarchical", KEYS[4])
    old = made(tmp_path, "bc", KEYS[5])
    runs = made(tmp_path, "collect", KEYS[6])
    publish(tmp_path / "outputs" / "policy" / "desk_noisy" / "bc", second)
    publish(tmp_path / "results" / "ablations" / "desk", study)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(f"policy: {{model_name: outputs/.artifacts/{named.name}/final}}\n")
    found = gone(tmp_path)
    assert {name for name, leftovers in found.items() if not leftovers} == {old.name}
    kept = {first.name, second.name, played.name, study.name, named.name, runs.name}
    assert {name for name, leftovers in found.items() if leftovers} == kept


def test_a_place_on_another_disk_keeps_what_it_points_at(tmp_path: Path) -> None:
    project, scratch = tmp_path / "project", tmp_path / "scratch"
    kept, old = made(project, "bc", KEYS[0]), made(project, "bc", KEYS[1])
    for folder in (old, kept):
        publish(scratch / "bc", folder)
        publish(scratch / "bc", folder)
    assert gone(project) == {kept.name: True, old.name: False}


def test_paid_journals_and_living_attempts_stay(tmp_path: Path) -> None:
    paid, alive = made(tmp_path, "verifier", KEYS[0]), made(tmp_path, "verifier", KEYS[1])
    (paid / JOURNAL).mkdir()
    (paid / JOURNAL / "journal.jsonl").write_text("a reply\n")
    (paid / f"{JOURNAL}-0a1b").mkdir()
    with lease(alive.with_name(f"{alive.name}.lease")):
        items = {item.folder.name: item for item in garbage(tmp_path)}
        assert items[alive.name].leftovers and not items[paid.name].leftovers
        assert not remove(items[alive.name]), "it is left while somebody holds it"
    assert (alive / "checkpoint-3").exists()
    assert remove(items[paid.name])
    assert sorted(path.name for path in paid.iterdir()) == [JOURNAL, f"{JOURNAL}-0a1b"]
    assert gone(tmp_path)[alive.name] is False and paid.name not in gone(tmp_path, unfinished=True)


def test_plays_go_with_their_attempt_and_orphans_among_them(tmp_path: Path) -> None:
    kept, old = made(tmp_path, "evaluate", KEYS[0]), made(tmp_path, "evaluate", KEYS[1])
    publish(tmp_path / "results" / "desk_noisy", kept)
    plays = tmp_path / "outputs" / ".episodes"
    for name in (kept.name, old.name, f"evaluate-{KEYS[2]}"):
        make_own(plays / name, PLAYS_MARKER)
        (plays / name / "kept.jsonl").write_text("{}\n" * 1000)
    items = garbage(tmp_path)
    assert {(item.folder.parent.name, item.folder.name): item.leftovers for item in items} == {
        (".artifacts", kept.name): True,
        (".artifacts", old.name): False,
        (".episodes", f"evaluate-{KEYS[2]}"): False,
    }
    assert all(remove(item) for item in items) and [path.name for path in plays.iterdir()] == [kept.name]
    assert not garbage(tmp_path)


def test_an_unfinished_attempt_goes_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / ".artifacts" / f"bc-{KEYS[0]}"
    folder.mkdir(parents=True)
    (folder / "half").write_text("work")
    (folder / ATTEMPT).write_text("{}")
    assert gone(tmp_path) == {} and gone(tmp_path, unfinished=True) == {folder.name: False}
    (item,) = garbage(tmp_path, unfinished=True)
    assert remove(item) and not folder.exists()


@pytest.mark.parametrize(
    ("room", "lies_as"),
    [(room, "link") for room in (".artifacts", ".episodes", ".snapshots")]
    + [(room, "folder") for room in (".artifacts", ".episodes")],
)
def test_what_r2v_did_not_mark_is_kept_and_named_in_one_line(
    tmp_path: Path, room: str, lies_as: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that is a link was emptied at the link's target."""
    home = tmp_path / "home"
    for name in ("thesis.tex", ".ssh/id", "snapshot.json", ATTEMPT, "notes.jsonl"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    os.utime(home / "snapshot.json", (0, 0))
    path = tmp_path / "project/outputs" / room / f"bc-{KEYS[0]}"
    path.parent.mkdir(parents=True)
    if lies_as == "link":
        path.symlink_to(home)
    else:
        path.mkdir()
        (path / "thesis.tex").write_text("mine")
    monkeypatch.chdir(tmp_path / "project")
    assert main(["gc", "--unfinished"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert f"outputs/{room}/{path.name}: " in line and "it is kept; to remove it: rm " in line
    assert printed.out == "0 places, 0 bytes removed\n"
    assert sum(file.is_file() for file in home.rglob("*")) == 5


def test_checkpoints_of_a_finished_attempt_that_is_a_link_stay(tmp_path: Path) -> None:
    attempt = made(tmp_path, "bc", KEYS[0])
    publish(tmp_path / "outputs" / "policy" / "desk_noisy" / "bc", attempt)
    attempt.rename(tmp_path / "moved")
    attempt.symlink_to(tmp_path / "moved")
    assert garbage(tmp_path) == []


@pytest.mark.parametrize("stranger", ["file", "folder", "broken", "link"])
def test_strangers_are_left(tmp_path: Path, stranger: str) -> None:
    store = tmp_path / "outputs" / ".artifacts"
    store.mkdir(parents=True)
    path = store / f"bc-{KEYS[0]}"
    if stranger == "file":
        path.write_text("x")
    elif stranger == "link":
        path.symlink_to("nowhere")
    else:
        path = path if stranger == "broken" else store / "thesis"
        path.mkdir()
        (path / "artifact.json").write_text("{")
    assert gone(tmp_path) == {}


def test_after_it_all_is_up_to_date_and_the_results_verify(
    micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = hard_copy(micro_run, tmp_path / "project")
    monkeypatch.chdir(project)
    assert main(["gc", "--dry-run"]) == 0
    promised = capsys.readouterr().out.splitlines()[-1]
    store = project / "outputs" / ".artifacts"
    assert list(store.glob("bc-*/checkpoint-*"))
    before = sum(path.stat().st_size for path in store.rglob("*") if path.is_file() and not path.is_symlink())
    assert main(["gc"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == promised.replace("would be removed", "removed")
    after = sum(path.stat().st_size for path in store.rglob("*") if path.is_file() and not path.is_symlink())
    freed = int(promised.split()[2].replace(",", ""))
    assert before - after == freed > before / 2, "more than half of a finished run's bytes"
    assert {step.state for step in plan(load(str(MICRO)))} == {"up to date"}
    assert main(["verify-results", "results/micro"]) == 0
    assert main(["train_policy", "--resume", "outputs/micro/policy/bc/checkpoint-latest"]) == 0
    assert "attempt already finished" in capsys.readouterr().err
    assert main(["gc"]) == 0 and capsys.readouterr().out.startswith("0 places, 0 bytes")


def test_a_snapshot_goes_a_month_after_it_was_made_where_no_chain_names_it(tmp_path: Path) -> None:
    for name, days in (("aaa", 40), ("bbb", 40), ("ccc", 1)):
        record = tmp_path / "outputs/.snapshots" / name / "snapshot.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
        then = record.stat().st_mtime - 86400 * days
        os.utime(record, (then, then))
    chain = tmp_path / "outputs/.chains/desk_noisy/chain.json"
    chain.parent.mkdir(parents=True)
    chain.write_text('{"snapshot": "bbb"}')
    (item,) = garbage(tmp_path)
    assert item.folder.name == "aaa" and remove(item)
    assert sorted(path.name for path in (tmp_path / "outputs/.snapshots").iterdir()) == ["bbb", "ccc"]
